// The timeline around one event or stretch of time, fetched part by part.
import type { JSX } from "preact";
import { useCallback, useEffect, useMemo, useState } from "preact/hooks";
import { type EventWindow, ApiError } from "../state/answers";
import { BASE, excerptUrl, fetchWindow } from "../state/api";
import { PlotFigure } from "../charts/plot-figure";
import { type Focus, type Range, drawTimeline, layOut } from "../charts/timeline-chart";
import { formatDuration, formatPlural } from "../format";
import { isExported } from "../state/exported";
import { useLinked } from "../state/linked";
import { profileTarget, traceViewerLink } from "../state/profile-tab";
import { report, selectedCapture } from "../state/store";
import { ExcerptLink } from "./excerpt-link";
import { LeftIcon, LinkIcon, MinusIcon, PlusIcon, RightIcon } from "../widgets/icons";
import { Pannable, panned, zoomed } from "./pannable";

const MAX_EVENTS = 1_800;
/** At least this much is shown, around short events. */
const INITIAL_NS = 2_000;
/** The part of the timeline that the focus fills at first: the rest shows what it waits for. */
const INITIAL_FILL = 0.5;
const ZOOM = 3;
/** How far a click moves the timeline, as a part of its length. */
const STRIDE = 0.5;
/** How much is fetched on each side, in lengths of the timeline, so that moving it shows events. */
const READ_AHEAD = 1;
/** Fetch again, in more detail, after zooming in this far. */
const MAX_MAGNIFICATION = 4;
/** While the timeline moves, wait this long for it to stop. */
const SETTLED_MS = 80;

interface Props {
  captureId: string;
  /** The index of the finding in the report, if the timeline belongs to one. */
  findingIndex?: number;
  worker: number;
  focus: Focus;
  /** The part of the timeline that the focus fills at first. */
  fill?: number;
  /** What the timeline is around, such as "the event". */
  around?: string;
  /** The rows of the evidence before and after the focused event, in order of time. */
  neighbors?: [previous: number | undefined, next: number | undefined];
  select?(row: number): void;
}

const isSameRange = (a: Range, b: Range): boolean => a.fromNs === b.fromNs && a.toNs === b.toNs;

/** A range in an address: nanoseconds since the beginning of the trace. */
const formatRange = ({ fromNs, toNs }: Range): string => `${Math.round(fromNs)}-${Math.round(toNs)}`;

function parseRange(text: string): Range | null {
  const [, from, to] = /^(\d{1,15})-(\d{1,15})$/.exec(text) ?? [];
  const range = { fromNs: Number(from), toNs: Number(to) };
  return range.fromNs < range.toNs ? range : null;
}

function initialRange({ startNs, durationNs }: Focus, fill: number): Range {
  const spanNs = Math.max(durationNs / fill, INITIAL_NS);
  const fromNs = Math.max(0, startNs + durationNs / 2 - spanNs / 2);
  return { fromNs, toNs: fromNs + spanNs };
}

/** Whether a fetched window shows a range in full detail. */
function covers(window: EventWindow, { fromNs, toNs }: Range): boolean {
  const isInside = window.from_ns <= fromNs + 1 && window.to_ns >= toNs - 1;
  const magnification = (window.to_ns - window.from_ns) / (toNs - fromNs);
  return isInside && (window.truncated === 0 || magnification <= MAX_MAGNIFICATION);
}

/** The events of a window in a range, so that tracks without any take no space. */
const cut = (window: EventWindow, { fromNs, toNs }: Range): EventWindow => ({
  ...window,
  events: window.events.filter(({ start_ns: start, duration_ns: ns }) => start < toNs && start + ns >= fromNs),
});

/** What to fetch for a range; an exported page has only the ranges shown at first. */
function widened({ fromNs, toNs }: Range): Range {
  const extraNs = isExported ? 0 : (toNs - fromNs) * READ_AHEAD;
  return { fromNs: Math.max(0, fromNs - extraNs), toNs: toNs + extraNs };
}

export function Timeline(props: Props): JSX.Element {
  const { captureId, findingIndex, worker, focus, fill = INITIAL_FILL, around = "the event", select } = props;
  const { startNs, durationNs, name } = focus;
  const about = `${captureId} ${findingIndex} ${worker} ${startNs} ${durationNs}`;
  const initial = initialRange(focus, fill);
  const [zoom, setZoom] = useLinked("zoom");
  const range = parseRange(zoom) ?? initial;
  const move = (next: Range): void => setZoom(isSameRange(next, initial) ? "" : formatRange(next));
  const [fetched, setFetched] = useState<{ about: string; window: EventWindow } | null>(null);
  const [problem, setProblem] = useState("");
  const window = fetched?.window ?? null;
  const { fromNs, toNs } = range;
  useEffect(() => {
    if (fetched?.about === about && covers(fetched.window, range)) return undefined;
    const controller = new AbortController();
    const fetchNow = (): void => {
      const request = { worker, finding: findingIndex, ...widened(range), maxEvents: MAX_EVENTS };
      fetchWindow(captureId, request, controller.signal).then(
        (events) => {
          setProblem("");
          setFetched({ about, window: events });
        },
        (error: unknown) => {
          if (controller.signal.aborted) return;
          setProblem(error instanceof ApiError ? error.message : "The events cannot be shown");
        },
      );
    };
    const timer = setTimeout(fetchNow, fetched?.about === about ? SETTLED_MS : 0);
    return () => {
      clearTimeout(timer);
      controller.abort();
    };
  }, [about, fromNs, toNs]);
  const layout = useMemo(
    () => window && layOut(cut(window, { fromNs, toNs }), { startNs, durationNs, name }),
    [window, fromNs, toNs, startNs, durationNs, name],
  );
  const draw = useCallback(
    (width: number) =>
      window && layout ? drawTimeline(window, layout, { startNs, durationNs, name }, { fromNs, toNs }, around, width) : {},
    [window, layout],
  );
  // If a fetch fails, keep showing the last window that has the event.
  const isInWindow = window !== null && window.from_ns <= startNs && startNs < window.to_ns;
  if (problem && !isInWindow) return <p class="muted timeline-problem">No timeline: {problem}.</p>;
  const current = report.value.state === "ready" ? report.value.value : null;
  const wholeNs = current?.workers[worker]?.duration_ns ?? Number.POSITIVE_INFINITY;
  const profile = profileTarget(selectedCapture.value);
  const hidden = window && layout ? window.truncated + layout.hidden : 0;
  const [previous, next] = props.neighbors ?? [undefined, undefined];
  const rule = current?.findings.find(({ analyzed_place }, place) => (analyzed_place ?? place) === findingIndex)?.rule_id;
  return (
    <div class="timeline">
      <div class="timeline-tools">
        <span class="muted">
          {problem ? `${problem}.` : `${formatDuration(toNs - fromNs)} around ${around}`}
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
            onClick={() => move(panned(range, -STRIDE, wholeNs))}
          />
          <Tool label="Later" icon={<RightIcon />} onClick={() => move(panned(range, STRIDE, wholeNs))} />
          <Tool label="Zoom in" icon={<PlusIcon />} onClick={() => move(zoomed(range, 1 / ZOOM, 0.5, wholeNs))} />
          <Tool label="Zoom out" icon={<MinusIcon />} onClick={() => move(zoomed(range, ZOOM, 0.5, wholeNs))} />
          {profile && (
            <a class="button" target="_parent" href={traceViewerLink(BASE, profile, fromNs, toNs)}>
              Trace viewer <LinkIcon />
            </a>
          )}
          <ExcerptLink href={excerptUrl(captureId, findingIndex, { worker, fromNs, toNs })} name={rule ?? "events"} />
        </span>
      </div>
      {window ? (
        <Pannable range={range} wholeNs={wholeNs} initial={initial} move={move}>
          <PlotFigure label={`Events around ${name || around}.`} draw={draw} />
        </Pannable>
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
