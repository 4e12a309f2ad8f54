// What a finding saves: in numbers, and as a bar that is solid up to its low end, faint up to its high
// end, with a tick at the expected value.
import type { JSX } from "preact";
import { formatBytes } from "../format";
import type { FindingInfo, SavingInfo } from "../report";
import { isExported } from "../state/exported";
import { describeBounds, describeMarginal, describeSaving } from "../text";
import { keepUnits } from "../widgets/prose";

/** `2.25 GiB less at the peak`; "" if the memory stays the same. */
export const describeMemory = ({ memory_saving: memory }: FindingInfo): string =>
  memory ? `${formatBytes(memory.bytes)} less at the peak` : "";

export function Saving({ finding }: { finding: FindingInfo }): JSX.Element {
  const { saving, bounds, refines } = finding;
  if (!saving) {
    const most = describeMemory(finding) || (bounds ? describeBounds(bounds) : "no time estimate");
    return <span class="saving muted">{keepUnits(most)}</span>;
  }
  const { expected, range } = describeSaving(saving);
  // Where changes can be ticked, that tells what each adds to any others.
  const marginal = isExported || refines !== null ? describeMarginal(finding) : "";
  return (
    <span class="saving">
      <span class="visually-hidden">Saves </span>
      <strong class={saving.expected_ns > 0 ? "saving-expected" : ""}>{expected}</strong>
      {range && (
        <span class="muted">
          <span class="visually-hidden">, range </span>
          {range}
        </span>
      )}
      {marginal && <span class="saving-marginal muted">{marginal}</span>}
    </span>
  );
}

interface BarProps {
  saving: SavingInfo;
  /** The share that fills the bar: the largest in the list, so that rows are comparable. */
  fullShare: number;
}

export function SavingBar({ saving, fullShare }: BarProps): JSX.Element {
  const at = (share: number): string => `${fullShare > 0 ? Math.min(Math.max(share / fullShare, 0), 1) * 100 : 0}%`;
  return (
    <span class="range" aria-hidden="true">
      <span class="range-high" style={{ width: at(saving.share_high) }} />
      <span class="range-low" style={{ width: at(saving.share_low) }} />
      <span class="range-tick" style={{ left: at(saving.share_expected) }} />
    </span>
  );
}
