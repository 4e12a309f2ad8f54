// Ranges of time on a timeline: nanoseconds since the beginning of the trace.

export interface Range {
  fromNs: number;
  toNs: number;
}

/** A stretch of time that a timeline is about. */
export interface Focus {
  startNs: number;
  durationNs: number;
  /** The event's name; empty for a stretch of time. */
  name: string;
}

/** Nothing is shorter in a trace. */
const NARROWEST_NS = 100;
/** At least this much is shown, around short events. */
const INITIAL_NS = 2_000;

export const isSameRange = (a: Range, b: Range): boolean => a.fromNs === b.fromNs && a.toNs === b.toNs;

/** A range in an address. */
export const formatRange = ({ fromNs, toNs }: Range): string => `${Math.round(fromNs)}-${Math.round(toNs)}`;

export function parseRange(text: string): Range | null {
  const [, from, to] = /^(\d{1,15})-(\d{1,15})$/.exec(text) ?? [];
  const range = { fromNs: Number(from), toNs: Number(to) };
  return range.fromNs < range.toNs ? range : null;
}

/** The range in which a stretch fills a part of the timeline: the rest shows what it waits for. */
export function rangeAround({ startNs, durationNs }: Focus, fill: number): Range {
  const spanNs = Math.max(durationNs / fill, INITIAL_NS);
  const fromNs = Math.max(0, startNs + durationNs / 2 - spanNs / 2);
  return { fromNs, toNs: fromNs + spanNs };
}

/** The range from one moment to another one, in either order, within a trace. */
export function between(oneNs: number, otherNs: number, wholeNs: number): Range | null {
  const fromNs = Math.max(Math.round(Math.min(oneNs, otherNs)), 0);
  const toNs = Math.min(Math.round(Math.max(oneNs, otherNs)), wholeNs);
  return fromNs < toNs ? { fromNs, toNs } : null;
}

/** Moves a range by a part of its length, within a trace. */
export function panned({ fromNs, toNs }: Range, part: number, wholeNs: number): Range {
  const spanNs = toNs - fromNs;
  const latestNs = Math.max(0, wholeNs - spanNs, fromNs);
  const start = Math.min(Math.max(0, fromNs + part * spanNs), latestNs);
  return { fromNs: start, toNs: start + spanNs };
}

/** Changes the length of a range by a factor; what is at `at` of it (0 to 1) stays in place. */
export function zoomed({ fromNs, toNs }: Range, factor: number, at: number, wholeNs: number): Range {
  const spanNs = toNs - fromNs;
  const widestNs = Math.max(wholeNs, spanNs);
  const next = Math.min(Math.max(spanNs * factor, NARROWEST_NS), widestNs);
  const start = Math.max(0, fromNs + at * (spanNs - next));
  return { fromNs: start, toNs: start + next };
}

/** A range of the same length in which a stretch is visible: itself if it is already. */
export function showing(range: Range, startNs: number, endNs: number): Range {
  if (startNs < range.toNs && endNs > range.fromNs) return range;
  const spanNs = range.toNs - range.fromNs;
  const fromNs = Math.max(0, (startNs + endNs) / 2 - spanNs / 2);
  return { fromNs, toNs: fromNs + spanNs };
}
