// Selects the capture to show.
import type { JSX } from "preact";
import type { Capture } from "../state/answers";
import { exportUrl } from "../state/api";
import { isExported } from "../state/exported";
import { go } from "../state/store";
import { frameworkName, sessionName } from "../text";
import { CompareMenu } from "./compare-menu";
import { ExportMenu } from "./export-menu";

const STATUS: Partial<Record<Capture["status"], string>> = {
  queued: "queued",
  running: "analyzing",
  failed: "failed",
};

/** The run, its session and what is known about it, as the closed box shows nothing else. */
const captureLabel = (capture: Capture): string =>
  [
    capture.run === "." ? "" : capture.run,
    sessionName(capture.session) || (capture.run ? "" : "capture"),
    // Unknown until the file has been read.
    capture.framework === "unknown" ? undefined : frameworkName(capture.framework),
    STATUS[capture.status],
    capture.is_synthetic ? "synthetic" : undefined,
  ]
    .filter(Boolean)
    .join(" · ");

export function groupByRun(captures: Capture[]): Map<string, Capture[]> {
  const runs = new Map<string, Capture[]>();
  for (const capture of captures) {
    const run = capture.run || ".";
    runs.set(run, [...(runs.get(run) ?? []), capture]);
  }
  return runs;
}

interface Props {
  captures: Capture[];
  selected: Capture | undefined;
  isScanning: boolean;
}

export function Picker({ captures, selected, isScanning }: Props): JSX.Element {
  const runs = [...groupByRun(captures)];
  return (
    <div class="toolbar" role="toolbar" aria-label="Capture">
      <label class="picker">
        <span class="visually-hidden">Capture</span>
        <select
          value={selected?.id ?? ""}
          onChange={({ currentTarget }) => go({ capture: currentTarget.value, finding: "" })}
        >
          {selected === undefined && (
            <option value="" disabled>
              Choose a profile
            </option>
          )}
          {runs.map(([run, members]) => {
            const [only] = members;
            // A run with one capture needs no heading.
            if (members.length === 1 && only) {
              return (
                <option key={only.id} value={only.id}>
                  {captureLabel(only)}
                </option>
              );
            }
            return (
              <optgroup key={run} label={run}>
                {members.map((capture) => (
                  <option key={capture.id} value={capture.id}>
                    {captureLabel(capture)}
                  </option>
                ))}
              </optgroup>
            );
          })}
        </select>
      </label>
      {isScanning && (
        <span class="muted" role="status">
          Scanning for more captures…
        </span>
      )}
      {selected?.status === "done" && !isExported && (
        <span class="menus">
          {captures.length > 1 && <CompareMenu selected={selected} captures={captures} />}
          <ExportMenu urlOf={(format) => exportUrl(selected.id, format)} />
        </span>
      )}
    </div>
  );
}
