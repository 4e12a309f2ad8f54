// Selects the capture to show, compares it with others, and downloads its report.
import type { JSX } from "preact";
import { useMemo } from "preact/hooks";
import type { Capture } from "../state/answers";
import { exportUrl } from "../state/api";
import { isExported } from "../state/exported";
import { pin, pinned } from "../state/marks";
import { compareLink, go } from "../state/store";
import { frameworkName, sessionName } from "../text";
import { Chooser, type ChooserOption } from "../widgets/chooser";
import { PageLink } from "../widgets/page-link";
import { captureName } from "../state/capture-name";
import { comparisonsOf } from "./comparisons";
import { newestFirst } from "./runs/groups";
import { ExportMenu } from "./export-menu";
import { Menu } from "./menu";
import { ShareMenu } from "./share-menu";

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

interface Props {
  captures: Capture[];
  selected: Capture | undefined;
}

export function Picker({ captures, selected, isScanning }: Props & { isScanning: boolean }): JSX.Element {
  const options = useMemo(
    () => newestFirst(captures).map((capture): ChooserOption => ({ id: capture.id, label: captureLabel(capture) })),
    [captures],
  );
  return (
    <div class="picker" role="toolbar" aria-label="Capture">
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
    </div>
  );
}

/** Keeps its room while the capture is analyzed. */
export function CaptureTools({ captures, selected }: Props): JSX.Element {
  return (
    <div class="menus">
      {selected?.status === "done" && !isExported && (
        <>
          {captures.length > 1 && <CompareMenu selected={selected} captures={captures} />}
          <ShareMenu />
          <ExportMenu urlOf={(format) => exportUrl(selected.id, format)} />
        </>
      )}
    </div>
  );
}

function CompareMenu({ selected, captures }: { selected: Capture; captures: Capture[] }): JSX.Element {
  const isBase = pinned.value === selected.id;
  return (
    <Menu label="Compare with…" name="compare">
      {comparisonsOf(selected, captures).map(({ id, reason, to }) => (
        <li key={id}>
          <PageLink to={to}>
            {captureName(id, captures)} <span class="muted">{reason}</span>
          </PageLink>
        </li>
      ))}
      <li>
        <PageLink to={compareLink(selected.id, [])}>Another run…</PageLink>
      </li>
      <li>
        <button type="button" aria-pressed={isBase} onClick={() => pin(isBase ? null : selected.id)}>
          {isBase ? "Unpin as the base" : "Pin as the base of comparisons"}
        </button>
      </li>
    </Menu>
  );
}
