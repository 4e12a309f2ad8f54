// The events around one of them, fetched when they come into view.
import type { JSX } from "preact";
import { useCallback, useEffect, useState } from "preact/hooks";
import { type EventWindow, ApiError, BASE, excerptUrl, fetchWindow } from "../api";
import { PlotFigure } from "../charts/plot-figure";
import { type Focus, countHidden, drawTimeline } from "../charts/timeline-chart";
import { formatDuration, formatPlural } from "../format";
import { profileTarget, traceViewerLink } from "../profile";
import { report, selectedCapture } from "../state";
import { ExcerptLink } from "./excerpt-link";
import { LeftIcon, LinkIcon, MinusIcon, PlusIcon, RightIcon } from "./icons";

const MAX_EVENTS = 600;
const NARROWEST_NS = 2_000;
/** An event fills this much of the first view: enough around it to see what it waits for. */
const FIRST_FILL = 0.5;
const ZOOM = 3;
/** Half of what is seen stays in sight. */
const STRIDE = 0.5;

interface Props {
  captureId: string;
  /** Where the finding stands in the report. */
  place: number;
  worker: number;
  focus: Focus;
  /** The events of the evidence beside the focus, in order of time. */
  occurrences?: { beside: [before: number | undefined, after: number | undefined]; choose(row: number): void };
}

export function Timeline({ captureId, place, worker, focus, occurrences }: Props): JSX.Element {
  const [zoom, setZoom] = useState(1);
  const [shift, setShift] = useState(0);
  const [window, setWindow] = useState<EventWindow | null>(null);
  const [problem, setProblem] = useState("");
  const { startNs, durationNs, name } = focus;
  const spanNs = Math.max(durationNs / FIRST_FILL, NARROWEST_NS) * zoom;
  const fromNs = Math.max(0, startNs + durationNs / 2 + shift - spanNs / 2);
  const toNs = fromNs + spanNs;
  useEffect(() => setShift(0), [startNs, durationNs]);
  useEffect(() => {
    const controller = new AbortController();
    const range = { worker, finding: place, fromNs, toNs, maxEvents: MAX_EVENTS };
    fetchWindow(captureId, range, controller.signal).then(
      (events) => {
        setProblem("");
        setWindow(events);
      },
      (error: unknown) => {
        if (controller.signal.aborted) return;
        setProblem(error instanceof ApiError ? error.message : "The events cannot be shown");
      },
    );
    return () => controller.abort();
  }, [captureId, place, worker, fromNs, toNs]);
  const draw = useCallback(
    (width: number) => drawTimeline(window as EventWindow, { startNs, durationNs, name }, width),
    [window, startNs, durationNs, name],
  );
  // What cannot be fetched leaves what is seen, if the event is still in it.
  const isSeen = window !== null && window.from_ns <= startNs && startNs < window.to_ns;
  if (problem && !isSeen) return <p class="muted timeline-problem">No time line: {problem}.</p>;
  const target = profileTarget(selectedCapture.value);
  const hidden = window ? countHidden(window, focus) : 0;
  const [before, after] = occurrences?.beside ?? [];
  const findings = report.value.state === "ready" ? report.value.value.findings : [];
  return (
    <div class="timeline">
      <div class="timeline-tools">
        <span class="muted">
          {problem ? `${problem}.` : `${formatDuration(spanNs)} around the event`}
          {!problem && window && window.claims.length > 0 && "; shaded: the time that this finding claims"}
          {!problem && hidden > 0 && `; ${formatPlural(hidden, "more event")} not drawn`}
        </span>
        <span class="button-row">
          {occurrences && (before !== undefined || after !== undefined) && (
            <>
              <Step label="Previous event" row={before} choose={occurrences.choose} />
              <Step label="Next event" row={after} choose={occurrences.choose} />
            </>
          )}
          <Tool
            label="Earlier"
            icon={<LeftIcon />}
            isOff={fromNs === 0}
            use={() => setShift(shift - spanNs * STRIDE)}
          />
          <Tool label="Later" icon={<RightIcon />} use={() => setShift(shift + spanNs * STRIDE)} />
          <Tool label="Zoom in" icon={<PlusIcon />} isOff={zoom < 1} use={() => setZoom(zoom / ZOOM)} />
          <Tool label="Zoom out" icon={<MinusIcon />} isOff={zoom > 200} use={() => setZoom(zoom * ZOOM)} />
          {target && (
            <a class="button" target="_parent" href={traceViewerLink(BASE, target, fromNs, toNs)}>
              Trace viewer <LinkIcon />
            </a>
          )}
          <ExcerptLink
            href={excerptUrl(captureId, place, { worker, fromNs, toNs })}
            ruleId={findings[place]?.rule_id ?? "evidence"}
          />
        </span>
      </div>
      {window ? (
        <PlotFigure label={`Events around ${name}; the table has them as text.`} draw={draw} />
      ) : (
        <div class="timeline-placeholder" role="status">
          Fetching events…
        </div>
      )}
    </div>
  );
}

interface ToolProps {
  label: string;
  icon: JSX.Element;
  isOff?: boolean;
  use(): void;
}

function Tool({ label, icon, isOff = false, use }: ToolProps): JSX.Element {
  return (
    <button type="button" class="tool" aria-label={label} title={label} disabled={isOff} onClick={use}>
      {icon}
    </button>
  );
}

/** To an event of the evidence beside this one. */
function Step(props: { label: string; row: number | undefined; choose(row: number): void }): JSX.Element {
  const { label, row, choose } = props;
  return (
    <button type="button" disabled={row === undefined} onClick={() => row !== undefined && choose(row)}>
      {label}
    </button>
  );
}
