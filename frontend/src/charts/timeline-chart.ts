// The events around one event: a band per track, with nested calls in lanes below their callers.
import * as Plot from "@observablehq/plot";
import type { EventWindow } from "../state/answers";
import { kindColor, onKindColor } from "./colors";
import { formatDuration, tickLabels } from "../format";

const MAX_LANES = 5;
const MAX_TRACKS = 8;
const LANE_PX = 18;
const LETTER_PX = 6.4;

export interface Focus {
  startNs: number;
  durationNs: number;
  /** The event's name; empty for a stretch of time. */
  name: string;
}

export interface Range {
  fromNs: number;
  toNs: number;
}

interface Box {
  x1: number;
  x2: number;
  lane: number;
  name: string;
  kind: string;
  durationNs: number;
  isFocus: boolean;
}

export interface Layout {
  boxes: Box[];
  bands: { label: string; lane: number }[];
  lanes: number;
  /** Events without a lane or a track in the chart. */
  hidden: number;
}

/** The lane of each event of a track: below those that are still open when it starts. */
function nest(events: EventWindow["events"]): number[] {
  const openUntil: number[] = [];
  return events.map((event) => {
    let lane = 0;
    while (lane < openUntil.length && (openUntil[lane] ?? 0) > event.start_ns) lane += 1;
    openUntil[lane] = event.start_ns + event.duration_ns;
    return lane;
  });
}

/**
 * Places each event. Calls nested deeper than a track has lanes are left out, innermost first; on
 * the track of the focused event, outermost first, as far as needed to show that event.
 */
export function layOut(window: EventWindow, focus: Focus): Layout {
  const isFocus = (event: EventWindow["events"][number]): boolean =>
    event.name === focus.name &&
    Math.abs(event.start_ns - focus.startNs) <= 1 &&
    Math.abs(event.duration_ns - focus.durationNs) <= 1;
  const focusTrack = window.events.find(isFocus)?.track;
  const layout: Layout = { boxes: [], bands: [], lanes: 0, hidden: 0 };
  const order = [...window.tracks.keys()].sort((a, b) => rank(a) - rank(b) || a - b);
  // The track of the focused event is first, then host tracks, then device tracks.
  function rank(track: number): number {
    if (track === focusTrack) return 0;
    return window.tracks[track]?.kind === "host" ? 1 : 2;
  }
  const drawn = order.filter((track) => window.events.some((event) => event.track === track));
  for (const [place, track] of drawn.entries()) {
    const events = window.events
      .filter((event) => event.track === track)
      .sort((a, b) => a.start_ns - b.start_ns || b.duration_ns - a.duration_ns);
    if (place >= MAX_TRACKS) {
      layout.hidden += events.length;
      continue;
    }
    layout.bands.push({ label: window.tracks[track]?.label ?? "", lane: layout.lanes });
    layout.lanes += 1;
    const laneOf = nest(events);
    const outermost = Math.max(0, (laneOf[events.findIndex(isFocus)] ?? 0) - (MAX_LANES - 1));
    let used = 1;
    for (const [index, event] of events.entries()) {
      const lane = (laneOf[index] ?? 0) - outermost;
      if (lane < 0 || lane >= MAX_LANES) {
        layout.hidden += 1;
        continue;
      }
      used = Math.max(used, lane + 1);
      layout.boxes.push({
        x1: Math.max(event.start_ns, window.from_ns) - focus.startNs,
        x2: Math.min(event.start_ns + event.duration_ns, window.to_ns) - focus.startNs,
        lane: layout.lanes + lane,
        name: event.name,
        kind: event.kind,
        durationNs: event.duration_ns,
        isFocus: isFocus(event),
      });
    }
    layout.lanes += used;
  }
  return layout;
}

const shorten = (name: string, room: number): string =>
  name.length <= room ? name : `${name.slice(0, Math.max(room - 1, 0))}…`;

/** Draws the part of a window in a range. */
export function drawTimeline(
  window: EventWindow,
  layout: Layout,
  focus: Focus,
  range: Range,
  around: string,
  width: number,
): Plot.PlotOptions {
  const { bands, lanes } = layout;
  const spanNs = range.toNs - range.fromNs;
  const [first, last] = [range.fromNs - focus.startNs, range.toNs - focus.startNs];
  const boxes = layout.boxes
    .filter(({ x1, x2 }) => x1 < last && x2 >= first)
    .map((box) => ({ ...box, x1: Math.max(box.x1, first), x2: Math.min(box.x2, last) }));
  const shades = window.claims
    .map(([startNs, endNs]): [number, number] => [
      Math.max(startNs - focus.startNs, first),
      Math.min(endNs - focus.startNs, last),
    ])
    .filter(([from, to]) => from < to);
  // A stretch of time, or calls of several names, have no event to outline: shade them.
  const isShaded = !layout.boxes.some(({ isFocus }) => isFocus);
  if (isShaded && first < focus.durationNs && last > 0) {
    shades.push([Math.max(0, first), Math.min(focus.durationNs, last)]);
  }
  const nsPerPx = spanNs / Math.max(width - 2, 1);
  // Leave a pixel between neighbors, but draw nothing too thin to see.
  const end = ({ x1, x2 }: Box): number => Math.max(x2 - nsPerPx, x1 + 1.5 * nsPerPx);
  const letters = ({ x1, x2 }: Box): number => Math.floor((x2 - x1) / nsPerPx / LETTER_PX) - 1;
  const captionOf = (box: Box): string => shorten(box.name, letters(box));
  const labeled = boxes.filter((box) => letters(box) >= 4);
  const title = (box: Box): string => `${box.name}\n${formatDuration(box.durationNs)}`;
  const ticks = Math.max(2, Math.floor(width / 110));
  return {
    height: lanes * LANE_PX + 44,
    marginTop: 4,
    marginBottom: 36,
    marginLeft: 1,
    marginRight: 1,
    x: {
      domain: [first, last],
      tickFormat: tickLabels(first, last, ticks, "ns"),
      ticks,
      label: `time from the start of ${isShaded ? around : "the marked event"}`,
      labelArrow: "none",
      labelAnchor: "center",
      grid: true,
    },
    y: { domain: [lanes, 0], axis: null },
    color: { type: "identity" },
    marks: [
      Plot.rect(shades, {
        x1: "0",
        x2: "1",
        y1: 0,
        y2: lanes,
        fill: "var(--accent)",
        fillOpacity: 0.1,
      }),
      Plot.rect(boxes.filter((box) => !box.isFocus), {
        x1: "x1",
        x2: end,
        y1: "lane",
        y2: (box: Box) => box.lane + 1,
        insetTop: 0.75,
        insetBottom: 0.75,
        rx: 1.5,
        fill: (box: Box) => kindColor(box.kind),
        fillOpacity: 0.42,
      }),
      Plot.rect(boxes.filter((box) => box.isFocus), {
        x1: "x1",
        x2: end,
        y1: "lane",
        y2: (box: Box) => box.lane + 1,
        insetTop: 0.75,
        insetBottom: 0.75,
        rx: 1.5,
        fill: (box: Box) => kindColor(box.kind),
        stroke: "currentColor",
        strokeWidth: 1.25,
      }),
      Plot.text(labeled, {
        x: "x1",
        y: (box: Box) => box.lane + 0.5,
        dx: 5,
        text: captionOf,
        textAnchor: "start",
        fill: (box: Box) => (box.isFocus ? onKindColor(box.kind) : "currentColor"),
        fontSize: 10.5,
        pointerEvents: "none",
      }),
      Plot.text(bands, {
        x: () => first,
        y: (band: { lane: number }) => band.lane + 0.6,
        text: ({ label }: { label: string }) => shorten(label, Math.floor(width / LETTER_PX) - 1),
        textAnchor: "start",
        fill: "var(--text-muted)",
        fontSize: 10.5,
        fontWeight: 600,
      }),
      Plot.tip(
        boxes,
        Plot.pointer({
          x: (box: Box) => (box.x1 + end(box)) / 2,
          y: (box: Box) => box.lane + 0.5,
          title,
          maxRadius: 60,
          lineWidth: 32,
          lineHeight: 1.35,
        }),
      ),
    ],
  };
}
