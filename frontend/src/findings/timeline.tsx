// The timeline around one event of the evidence, fetched part by part.
import type { JSX } from "preact";
import { useCallback, useEffect, useState } from "preact/hooks";
import { type EventWindow, ApiError } from "../state/answers";
import { BASE, excerptUrl, fetchWindow } from "../state/api";
import { PlotFigure } from "../charts/plot-figure";
import { type Focus, countHidden, drawTimeline } from "../charts/timeline-chart";
import { formatDuration, formatPlural } from "../format";
import { profileTarget, traceViewerLink } from "../state/profile-tab";
import { report, selectedCapture } from "../state/store";
import { ExcerptLink } from "./excerpt-link";
import { LeftIcon, LinkIcon, MinusIcon, PlusIcon, RightIcon } from "../widgets/icons";

const MAX_EVENTS = 600;
const NARROWEST_NS = 2_000;
/** The part of the timeline that the event fills at first: the rest shows what it waits for. */
const INITIAL_FILL = 0.5;
const ZOOM = 3;
/** How far a click moves the timeline, as a part of its length. */
const STRIDE = 0.5;

interface Props {
  captureId: string;
  /** The index of the finding in the report. */
  findingIndex: number;
  worker: number;
  focus: Focus;
  /** The rows of the evidence before and after the focused event, in order of time. */
  neighbors?: [previous: number | undefined, next: number | undefined];
  select?(row: number): void;
}

export function Timeline({ captureId, findingIndex, worker, focus, neighbors = [undefined, undefined], select }: Props): JSX.Element {
  const [zoom, setZoom] = useState(1);
  const [shift, setShift] = useState(0);
  const [window, setWindow] = useState<EventWindow | null>(null);
  const [problem, setProblem] = useState("");
  const { startNs, durationNs, name } = focus;
  const spanNs = Math.max(durationNs / INITIAL_FILL, NARROWEST_NS) * zoom;
  const fromNs = Math.max(0, startNs + durationNs / 2 + shift - spanNs / 2);
  const toNs = fromNs + spanNs;
  useEffect(() => setShift(0), [startNs, durationNs]);
  useEffect(() => {
    const controller = new AbortController();
    const range = { worker, finding: findingIndex, fromNs, toNs, maxEvents: MAX_EVENTS };
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
  }, [captureId, findingIndex, worker, fromNs, toNs]);
  const draw = useCallback(
    (width: number) => drawTimeline(window as EventWindow, { startNs, durationNs, name }, width),
    [window, startNs, durationNs, name],
  );
  // If a fetch fails, keep showing the last window that has the event.
  const isInWindow = window !== null && window.from_ns <= startNs && startNs < window.to_ns;
  if (problem && !isInWindow) return <p class="muted timeline-problem">No timeline: {problem}.</p>;
  const profile = profileTarget(selectedCapture.value);
  const hidden = window ? countHidden(window, focus) : 0;
  const [previous, next] = neighbors;
  const findings = report.value.state === "ready" ? report.value.value.findings : [];
  return (
    <div class="timeline">
      <div class="timeline-tools">
        <span class="muted">
          {problem ? `${problem}.` : `${formatDuration(spanNs)} around the event`}
          {!problem && window && window.claims.length > 0 && "; shaded: affected time"}
          {!problem && hidden > 0 && `; ${formatPlural(hidden, "more event")} not shown`}
        </span>
        <span class="button-row">
          {select && (previous !== undefined || next !== undefined) && (
            <>
              <SelectButton label="Previous event" row={previous} select={select} />
              <SelectButton label="Next event" row={next} select={select} />
            </>
          )}
          <Tool
            label="Earlier"
            icon={<LeftIcon />}
            isDisabled={fromNs === 0}
            onClick={() => setShift(shift - spanNs * STRIDE)}
          />
          <Tool label="Later" icon={<RightIcon />} onClick={() => setShift(shift + spanNs * STRIDE)} />
          <Tool label="Zoom in" icon={<PlusIcon />} isDisabled={zoom < 1} onClick={() => setZoom(zoom / ZOOM)} />
          <Tool label="Zoom out" icon={<MinusIcon />} isDisabled={zoom > 200} onClick={() => setZoom(zoom * ZOOM)} />
          {profile && (
            <a class="button" target="_parent" href={traceViewerLink(BASE, profile, fromNs, toNs)}>
              Trace viewer <LinkIcon />
            </a>
          )}
          <ExcerptLink
            href={excerptUrl(captureId, findingIndex, { worker, fromNs, toNs })}
            ruleId={findings[findingIndex]?.rule_id ?? "evidence"}
          />
        </span>
      </div>
      {window ? (
        <PlotFigure label={`Events around ${name}.`} draw={draw} />
      ) : (
        <div class="timeline-placeholder" role="status">
          Loading events…
        </div>
      )}
    </div>
  );
}

interface ToolProps {
  label: string;
  icon: JSX.Element;
  isDisabled?: boolean;
  onClick(): void;
}

function Tool({ label, icon, isDisabled = false, onClick }: ToolProps): JSX.Element {
  return (
    <button type="button" class="tool" aria-label={label} title={label} disabled={isDisabled} onClick={onClick}>
      {icon}
    </button>
  );
}

function SelectButton(props: { label: string; row: number | undefined; select(row: number): void }): JSX.Element {
  const { label, row, select } = props;
  return (
    <button type="button" disabled={row === undefined} onClick={() => row !== undefined && select(row)}>
      {label}
    </button>
  );
}
