// A saving as a bar: solid up to its low end, faint up to its high end, a tick at the expected value.
import type { JSX } from "preact";
import type { FindingInfo, SavingInfo } from "../report";
import { isExported } from "../state/exported";
import { describeMarginal, describeSaving } from "../text";

interface Props {
  finding: FindingInfo;
  saving: SavingInfo;
  /** The share that fills the bar: the largest in the list, so that rows are comparable. */
  fullShare: number;
}

export function Saving({ finding, saving, fullShare }: Props): JSX.Element {
  const at = (share: number): string => `${fullShare > 0 ? Math.min(Math.max(share / fullShare, 0), 1) * 100 : 0}%`;
  const { expected, range } = describeSaving(saving);
  // Where changes can be ticked, that tells what each adds to any others.
  const marginal = isExported || finding.refines !== null ? describeMarginal(finding) : "";
  return (
    <span class="saving">
      <span class="saving-text">
        <span class="visually-hidden">Saves </span>
        <strong>{expected}</strong>
        {range && (
          <span class="saving-range">
            <span class="visually-hidden">, range </span>
            {range}
          </span>
        )}
      </span>
      <span class="range" aria-hidden="true">
        <span class="range-high" style={{ width: at(saving.share_high) }} />
        <span class="range-low" style={{ width: at(saving.share_low) }} />
        <span class="range-tick" style={{ left: at(saving.share_expected) }} />
      </span>
      {marginal && <span class="saving-marginal">{marginal}</span>}
    </span>
  );
}
