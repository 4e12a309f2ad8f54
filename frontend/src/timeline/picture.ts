// What the server sent of a range of time, as columns that are quick to draw and to search.
import type { EventWindow, Track } from "../state/answers";
import type { Focus, Range } from "./range";

export interface Picture extends Range {
  answer: EventWindow;
  /** Boxes by row and start. */
  count: number;
  /** The first box of each row, and at the end the number of boxes. */
  first: Int32Array;
  startNs: Float64Array;
  endNs: Float64Array;
  kind: Uint8Array;
  name: Int32Array;
}

/** Fetch again, in more detail, after zooming in this far. */
const MAX_MAGNIFICATION = 4;

export const rowsOf = (tracks: Track[]): number => tracks.reduce((most, { row, rows }) => Math.max(most, row + rows), 0);

export function makePicture(answer: EventWindow): Picture {
  const { boxes, from_ns: fromNs } = answer;
  const rows = rowsOf(answer.tracks);
  const count = boxes.row.length;
  const first = new Int32Array(rows + 1).fill(count);
  for (let box = count - 1; box >= 0; box -= 1) {
    const row = boxes.row[box] ?? 0;
    if (row < rows) first[row] = box;
  }
  // A row without boxes begins where the next one does.
  for (let row = rows - 1; row >= 0; row -= 1) first[row] = Math.min(first[row] ?? 0, first[row + 1] ?? 0);
  const startNs = Float64Array.from(boxes.start_ns, (start) => start + fromNs);
  return {
    answer,
    fromNs,
    toNs: answer.to_ns,
    count,
    first,
    startNs,
    endNs: startNs.map((start, box) => start + (boxes.duration_ns[box] ?? 0)),
    kind: Uint8Array.from(boxes.kind),
    name: Int32Array.from(boxes.name),
  };
}

/** Whether a picture shows a range in as much detail as there is. */
export function covers(picture: Picture, { fromNs, toNs }: Range): boolean {
  const isInside = picture.fromNs <= fromNs + 1 && picture.toNs >= toNs - 1;
  return isInside && (isExact(picture) || (picture.toNs - picture.fromNs) / (toNs - fromNs) <= MAX_MAGNIFICATION);
}

const exact = new WeakMap<Picture, boolean>();

/** Whether each box is one event. */
export function isExact(picture: Picture): boolean {
  let known = exact.get(picture);
  if (known === undefined) {
    known = picture.answer.boxes.count.every((count) => count === 1);
    exact.set(picture, known);
  }
  return known;
}

/** The first box of a row that ends after a time. */
export function firstAfter({ first, endNs }: Picture, row: number, atNs: number): number {
  let [low, high] = [first[row] ?? 0, first[row + 1] ?? 0];
  while (low < high) {
    const middle = (low + high) >> 1;
    if ((endNs[middle] ?? 0) <= atNs) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** The box of a row at a time, or within a tolerance of it; -1 for none. */
export function boxAt(picture: Picture, row: number, atNs: number, toleranceNs: number): number {
  const last = picture.first[row + 1] ?? 0;
  let [best, distance] = [-1, Number.POSITIVE_INFINITY];
  for (let box = firstAfter(picture, row, atNs - toleranceNs); box < last; box += 1) {
    const [start, end] = [picture.startNs[box] ?? 0, picture.endNs[box] ?? 0];
    if (start > atNs + toleranceNs) break;
    const away = Math.max(start - atNs, atNs - end, 0);
    if (away < distance) [best, distance] = [box, away];
  }
  return best;
}

export const boxOfEvent = ({ answer }: Picture, event: number): number => answer.boxes.event.indexOf(event);

/** The box of the event that a timeline is about; -1 if there is none. */
export function boxOfFocus(picture: Picture, { startNs, durationNs, name }: Focus): number {
  const { texts, boxes } = picture.answer;
  const wanted = texts.indexOf(name);
  if (wanted < 0) return -1;
  return boxes.name.findIndex(
    (index, box) =>
      index === wanted &&
      Math.abs((picture.startNs[box] ?? 0) - startNs) <= 1 &&
      Math.abs((boxes.duration_ns[box] ?? 0) - durationNs) <= 1,
  );
}

export const trackOf = (tracks: Track[], row: number): Track | undefined =>
  tracks.find((track) => track.row <= row && row < track.row + track.rows);

/** The part of each cause in the time around a moment, the largest first. */
export function causesAt({ answer, fromNs, toNs }: Picture, atNs: number): [cause: string, share: number][] {
  const { bins, total_ns: totals } = answer.causes;
  const bin = Math.floor(((atNs - fromNs) / (toNs - fromNs)) * bins);
  const parts = Object.entries(totals).map(([cause, ns]): [string, number] => [cause, ns[bin] ?? 0]);
  const whole = parts.reduce((sum, [, ns]) => sum + ns, 0);
  return parts
    .filter(([, ns]) => ns > 0)
    .map(([cause, ns]): [string, number] => [cause, ns / whole])
    .sort((a, b) => b[1] - a[1]);
}

/** The findings that claim a moment, by their places in the analysis. */
export const findingsAt = ({ answer, fromNs }: Picture, atNs: number): number[] =>
  answer.claims
    .filter(({ intervals }) => intervals.some(([start, end]) => start <= atNs - fromNs && atNs - fromNs < end))
    .map(({ finding }) => finding);

/** The calls of one name in a range. */
export interface Calls {
  name: string;
  kind: string;
  track: string;
  count: number;
  /** Without the calls inside them. */
  selfNs: number;
  totalNs: number;
  /** The event that takes the longest. */
  event: number;
}

/** Time by name in a range, without events that share a box; and how many events those are. */
export function callsIn(picture: Picture, range: Range): { calls: Calls[]; hidden: number } {
  const { boxes, kinds, texts, tracks } = picture.answer;
  const found = new Map<string, Calls & { longestNs: number }>();
  let hidden = 0;
  for (const [at, track] of tracks.entries()) {
    for (let row = track.row; row < track.row + track.rows; row += 1) {
      const last = picture.first[row + 1] ?? 0;
      for (let box = firstAfter(picture, row, range.fromNs); box < last; box += 1) {
        const start = Math.max(picture.startNs[box] ?? 0, range.fromNs);
        if (start >= range.toNs) break;
        const count = boxes.count[box] ?? 1;
        if (count > 1) {
          hidden += count;
          continue;
        }
        const ns = Math.min(picture.endNs[box] ?? 0, range.toNs) - start;
        const inside = row + 1 < track.row + track.rows ? coveredNs(picture, row + 1, start, start + ns) : 0;
        const key = `${picture.name[box]} ${at}`;
        const calls = found.get(key) ?? {
          name: texts[picture.name[box] ?? -1] ?? "", kind: kinds[picture.kind[box] ?? 0] ?? "", track: track.label,
          count: 0, selfNs: 0, totalNs: 0, event: -1, longestNs: -1,
        };
        calls.count += 1;
        calls.selfNs += Math.max(ns - inside, 0);
        calls.totalNs += ns;
        if (ns > calls.longestNs) [calls.longestNs, calls.event] = [ns, boxes.event[box] ?? -1];
        found.set(key, calls);
      }
    }
  }
  return { calls: [...found.values()].sort((a, b) => b.selfNs - a.selfNs), hidden };
}

/** How much time of a stretch the boxes of a row take. */
function coveredNs(picture: Picture, row: number, fromNs: number, toNs: number): number {
  const { duration_ns: durations, busy_ns: busy } = picture.answer.boxes;
  const last = picture.first[row + 1] ?? 0;
  let sum = 0;
  for (let box = firstAfter(picture, row, fromNs); box < last; box += 1) {
    const start = Math.max(picture.startNs[box] ?? 0, fromNs);
    if (start >= toNs) break;
    const ns = Math.min(picture.endNs[box] ?? 0, toNs) - start;
    sum += (durations[box] ?? 0) > 0 ? ns * ((busy[box] ?? 0) / (durations[box] ?? 1)) : 0;
  }
  return sum;
}
