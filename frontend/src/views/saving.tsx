// A saving as a range: solid up to its low end, faint up to its high end, a tick at the expected.
import type { JSX } from "preact";
import { formatDuration } from "../format";
import type { SavingInfo } from "../report";
import { describeSaving } from "../text";

interface Props {
  saving: SavingInfo;
  /** The share that fills the whole bar: the largest of the list, so that rows compare. */
  fullShare: number;
  stepTimeNs: number;
}

export function Saving({ saving, fullShare, stepTimeNs }: Props): JSX.Element {
  const at = (share: number): string => `${fullShare > 0 ? Math.min(share / fullShare, 1) * 100 : 0}%`;
  return (
    <span class="saving">
      <span class="saving-text">
        <span class="visually-hidden">Saves </span>
        {describeSaving(saving, stepTimeNs)}
      </span>
      <span class="range" aria-hidden="true" title={`Expected: ${formatDuration(saving.expected_ns)}`}>
        <span class="range-high" style={{ width: at(saving.share_high) }} />
        <span class="range-low" style={{ width: at(saving.share_low) }} />
        <span class="range-tick" style={{ left: at(saving.share_expected) }} />
      </span>
    </span>
  );
}
