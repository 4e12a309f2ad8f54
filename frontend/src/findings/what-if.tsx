// Where the step lands with the ticked changes. The engine answers; this asks and shows.
import { type JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import { formatDuration, formatDurationRange, formatPlural, formatShare } from "../format";
import type { CombinedSaving, FindingInfo, Report } from "../report";
import { toApiError } from "../state/answers";
import { fetchCombination } from "../state/api";
import { isExported } from "../state/exported";
import type { Load } from "../state/polling";
import { tickAll, tickedFindings, toggleTick } from "../state/ticks";
import { isAside, isSetAside } from "./remark";
import { Prose } from "../widgets/prose";

/** Whether making its change may save time, so that it can be ticked. */
export const canTick = (finding: Pick<FindingInfo, "saving" | "bounds" | "remark">): boolean =>
  !isExported && !isSetAside(finding) && (finding.saving !== null || finding.bounds !== null);

/** The box that ticks a finding. */
export function Tick({ id, finding }: { id: string; finding: FindingInfo }): JSX.Element {
  const title = finding.heading ?? finding.title;
  return (
    <label class="tick" title="What if? Count this change">
      <input
        type="checkbox"
        checked={tickedFindings.value.has(id)}
        onChange={() => toggleTick(id)}
        aria-label={`Count this change: ${title.replaceAll("`", "")}`}
      />
    </label>
  );
}

interface Props {
  report: Report;
  captureId: string;
  /** Of all findings, in the order of the report. */
  ids: string[];
}

export function WhatIf({ report, captureId, ids }: Props): JSX.Element | null {
  const { findings } = report;
  const possible = ids.filter((_, place) => {
    const finding = findings[place] as FindingInfo;
    return canTick(finding) && !isAside(findings, finding);
  });
  const ticked = findings.filter((finding, place) => tickedFindings.value.has(ids[place] ?? "") && !isAside(findings, finding));
  // The engine names findings by their places in the analysis.
  const load = useCombination(
    captureId,
    ticked.map((finding) => finding.analyzed_place ?? report.findings.indexOf(finding)),
  );
  if (possible.length < 2) return null;
  return (
    <>
      <section class={`what-if${ticked.length > 0 ? " is-ticked" : ""}`} aria-labelledby="what-if">
        <div class="what-if-head">
          <h3 id="what-if">What if</h3>
          <span class="muted">
            {ticked.length === 0 ? "Tick changes to see where they lead together." : `with ${formatPlural(ticked.length, "change")}`}
          </span>
          <span class="button-row">
            {ticked.length < possible.length && (
              <button type="button" class="link-button" onClick={() => tickAll(possible)}>
                Tick all
              </button>
            )}
            {ticked.length > 0 && (
              <button type="button" class="link-button" onClick={() => tickAll([])}>
                Clear
              </button>
            )}
          </span>
        </div>
        {ticked.length > 0 && (
          <div aria-live="polite" aria-busy={load.state !== "ready"}>
            {load.state === "failed" ? (
              <p>{load.error.message}</p>
            ) : load.state === "ready" ? (
              <Outcome saving={load.value} report={report} />
            ) : (
              <p class="muted">Replaying …</p>
            )}
          </div>
        )}
      </section>
      {ticked.length > 0 && load.state === "ready" && <Remarks saving={load.value} ticked={ticked} report={report} isAll={ticked.length === possible.length} />}
    </>
  );
}

function Outcome({ saving, report }: { saving: CombinedSaving; report: Report }): JSX.Element {
  const { overview, steps } = report;
  const whole = overview.step_time_ns ?? overview.window_ns;
  const at = (ns: number): string => `${whole > 0 ? Math.min(Math.max(ns / whole, 0), 1) * 100 : 0}%`;
  return (
    <>
      <p class="what-if-outcome">
        {steps.used > 0 ? "A step takes" : "The profile takes"} {formatDuration(whole)} →{" "}
        <strong>{formatDuration(whole - saving.expected_ns)}</strong>
        <span class="muted">
          <Prose
            text={
              saving.expected_ns > 0
                ? ` saves ${formatDuration(saving.expected_ns)} (${formatShare(saving.share_expected)}), range ${formatDurationRange(saving.low_ns, saving.high_ns)}`
                : ` saves up to ${formatDuration(saving.high_ns)}, and how much is unknown`
            }
          />
        </span>
      </p>
      <span class="what-if-bar" aria-hidden="true">
        <span class="range-high" style={{ width: at(whole - saving.low_ns) }} />
        <span class="range-low" style={{ width: at(whole - saving.high_ns) }} />
        <span class="range-tick" style={{ left: at(whole - saving.expected_ns) }} />
      </span>
    </>
  );
}

/** Below the panel, which stays in view and so must be small. */
function Remarks(props: { saving: CombinedSaving; ticked: FindingInfo[]; report: Report; isAll: boolean }): JSX.Element | null {
  const { saving, ticked, report, isAll } = props;
  const remarks = [describeOverlap(saving, ticked), isAll ? describeAside(saving, report) : ""].filter(Boolean);
  const tried = ticked.filter(({ proof }) => proof);
  if (remarks.length === 0 && tried.length === 0) return null;
  return (
    <div class="what-if-remarks muted" role="status">
      {remarks.map((text) => (
        <p key={text}>{text}</p>
      ))}
      {tried.map((finding) => (
        <p key={finding.rule_id}>
          <Prose text={finding.heading ?? finding.title} />: {finding.proof?.text}. That counts, not what was predicted.
        </p>
      ))}
    </div>
  );
}

/** What the changes share, or bring only together; "" where each brings what it brings alone. */
export function describeOverlap(saving: Pick<CombinedSaving, "expected_ns">, ticked: FindingInfo[]): string {
  if (ticked.length < 2 || ticked.some(({ proof }) => proof)) return "";
  const alone = ticked.reduce((sum, { saving: own }) => sum + (own?.expected_ns ?? 0), 0);
  const difference = Math.abs(alone - saving.expected_ns);
  if (difference < 0.01 * alone || alone === 0) return "";
  return alone > saving.expected_ns
    ? `One by one they would save ${formatDuration(alone)}: ${formatDuration(difference)} of it is the same time.`
    : `One by one they would save ${formatDuration(alone)}: together ${formatDuration(difference)} more, as each alone leaves the other to hold up the step.`;
}

/** Why all changes save another amount than "With all changes" says; "" where they do not. */
export function describeAside(saving: Pick<CombinedSaving, "expected_ns">, report: Pick<Report, "combined_saving" | "findings">): string {
  const whole = report.combined_saving?.expected_ns ?? 0;
  if (!report.findings.some(isSetAside) || Math.abs(whole - saving.expected_ns) < 0.01 * whole) return "";
  return `“With all changes” counts ${formatDuration(whole)}: the sum without what is set aside. This replays what is left.`;
}

/** What findings save together; an answer about other findings is none. */
function useCombination(captureId: string, places: number[]): Load<CombinedSaving> {
  const asked = places.join(" ");
  const [answer, setAnswer] = useState<{ asked: string; load: Load<CombinedSaving> } | null>(null);
  useEffect(() => {
    if (places.length === 0) return undefined;
    const controller = new AbortController();
    fetchCombination(captureId, places, controller.signal).then(
      (value) => setAnswer({ asked, load: { state: "ready", value } }),
      (error: unknown) => {
        if (!controller.signal.aborted) setAnswer({ asked, load: { state: "failed", error: toApiError(error) } });
      },
    );
    return () => controller.abort();
  }, [captureId, asked]);
  return answer?.asked === asked ? answer.load : { state: "loading" };
}
