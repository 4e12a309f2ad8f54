// Selects the capture to show.
import type { JSX } from "preact";
import { useMemo } from "preact/hooks";
import type { Capture } from "../state/answers";
import { exportUrl } from "../state/api";
import { isExported } from "../state/exported";
import { go } from "../state/store";
import { frameworkName, sessionName } from "../text";
import { Chooser, type ChooserOption } from "../widgets/chooser";
import { newestFirst } from "./runs/groups";
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

/** All captures as options, the newest first. */
export const captureOptions = (captures: Capture[]): ChooserOption[] =>
  newestFirst(captures).map((capture) => ({ id: capture.id, label: captureLabel(capture) }));

interface Props {
  captures: Capture[];
  selected: Capture | undefined;
  isScanning: boolean;
}

export function Picker({ captures, selected, isScanning }: Props): JSX.Element {
  const options = useMemo(() => captureOptions(captures), [captures]);
  return (
    <div class="toolbar" role="toolbar" aria-label="Capture">
      <Chooser
        label="Capture"
        options={options}
        chosen={selected?.id}
        placeholder="Choose a profile"
        choose={(id) => go({ capture: id, finding: "" })}
      />
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
