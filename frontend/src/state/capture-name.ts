// The name of a capture among others.
import type { Capture } from "./answers";
import { sessionName } from "../text";

/** The runs that were recorded several times. */
export function repeatedRuns(captures: readonly Capture[]): Set<string> {
  const seen = new Set<string>();
  const repeated = new Set<string>();
  for (const { run } of captures) (seen.has(run) ? repeated : seen).add(run);
  return repeated;
}

export const isRecordedAgain = ({ recordings = 1 }: Capture): boolean => recordings > 1;

/** A capture's run, and its session if the run was recorded several times. */
export function nameOf({ run, session }: Capture, repeated: Set<string>): string {
  const name = run || ".";
  return repeated.has(run) ? `${name} · ${sessionName(session)}` : name;
}

export function captureName(id: string, captures: Capture[]): string {
  const capture = captures.find((candidate) => candidate.id === id);
  return capture ? nameOf(capture, repeatedRuns(captures)) : id;
}
