// The events around one of them, fetched when they come into view.
import type { JSX } from "preact";
import { useCallback, useEffect, useState } from "preact/hooks";
import { type EventWindow, ApiError, BASE, fetchWindow } from "../api";
import { PlotFigure } from "../charts/plot-figure";
import { type Focus, countHidden, drawTimeline } from "../charts/timeline-chart";
import { formatCount, formatDuration } from "../format";
import { profileTarget, traceViewerLink } from "../profile";
import { selectedCapture } from "../state";
import { LinkIcon } from "./icons";

const MAX_EVENTS = 600;
const NARROWEST_NS = 2_000;
/** An event fills this much of the first view: enough around it to see what it waits for. */
const FIRST_FILL = 0.5;
const ZOOM = 3;

interface Props {
  captureId: string;
  worker: number;
  focus: Focus;
}

export function Timeline({ captureId, worker, focus }: Props): JSX.Element {
  const [zoom, setZoom] = useState(1);
  const [window, setWindow] = useState<EventWindow | null>(null);
  const [problem, setProblem] = useState("");
  const { startNs, durationNs, name } = focus;
  const spanNs = Math.max(durationNs / FIRST_FILL, NARROWEST_NS) * zoom;
  const fromNs = Math.max(0, startNs + durationNs / 2 - spanNs / 2);
  const toNs = fromNs + spanNs;
  useEffect(() => {
    const controller = new AbortController();
    fetchWindow(captureId, { worker, fromNs, toNs, maxEvents: MAX_EVENTS }, controller.signal).then(
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
  }, [captureId, worker, fromNs, toNs]);
  const draw = useCallback(
    (width: number) => drawTimeline(window as EventWindow, { startNs, durationNs, name }, width),
    [window, startNs, durationNs, name],
  );
  if (problem) return <p class="muted timeline-problem">No time line: {problem}.</p>;
  const target = profileTarget(selectedCapture.value);
  const hidden = window ? countHidden(window, focus) : 0;
  return (
    <div class="timeline">
      <div class="timeline-tools">
        <span class="muted">
          {formatDuration(spanNs)} around the event
          {hidden > 0 && `; ${formatCount(hidden)} smaller events not drawn`}
        </span>
        <span class="button-row">
          <button type="button" onClick={() => setZoom(zoom / ZOOM)} disabled={zoom < 1}>
            Zoom in
          </button>
          <button type="button" onClick={() => setZoom(zoom * ZOOM)} disabled={zoom > 200}>
            Zoom out
          </button>
          {target && (
            <a class="button" target="_parent" href={traceViewerLink(BASE, target, fromNs, toNs)}>
              Trace viewer <LinkIcon />
            </a>
          )}
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
