// What trying a finding's change showed.
import type { JSX } from "preact";
import type { ProofInfo } from "../report";

export function Proof({ proof }: { proof: ProofInfo }): JSX.Element {
  return (
    <span
      class={`proof ${proof.helped ? "proof-helped" : "proof-in-vain"}`}
      title={`${proof.change}, tried with perfadvisor try in ${proof.pairs} pairs of runs`}
    >
      {proof.text}
    </span>
  );
}
