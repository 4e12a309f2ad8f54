// What is chosen in a table, on the timeline.
import type { ComponentChildren, JSX } from "preact";
import type { Report } from "../report";
import type { Focus } from "../timeline/range";
import { Timeline } from "../timeline/timeline";
import { CloseButton } from "../widgets/close-button";

interface Props {
  report: Report;
  captureId: string;
  title: ComponentChildren;
  focus: Focus;
  /** How much of the width it takes. */
  fill: number;
  around?: string;
  close(): void;
  children?: ComponentChildren;
}

export function ChosenRow({ report, captureId, title, close, children, ...shown }: Props): JSX.Element {
  return (
    <section class="card" aria-labelledby="chosen-row">
      <div class="card-head">
        <h2 id="chosen-row" class="run-title">{title}</h2>
        <CloseButton label="Close the timeline" onClick={close} />
      </div>
      {children}
      <Timeline captureId={captureId} worker={report.reference_worker} {...shown} />
    </section>
  );
}

/** The longest execution of what a row is about. */
export const longestOf = (row: { longest_start_ns: number; longest_ns: number }, name: string): Pick<Props, "focus" | "fill"> => ({
  focus: { startNs: row.longest_start_ns, durationNs: row.longest_ns, name },
  fill: 0.25,
});
