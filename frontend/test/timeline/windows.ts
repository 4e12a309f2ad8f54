// A window as the server sends it, from boxes that are easy to write.
import type { EventWindow } from "../../src/state/answers";

export type Box = [row: number, name: string, startNs: number, endNs: number, count?: number];

/** Boxes by row and start, of a track with two rows and one with a single row. */
export function windowOf(fromNs: number, toNs: number, boxes: Box[]): EventWindow {
  const texts = [...new Set(boxes.map(([, name]) => name))];
  return {
    worker: 0, from_ns: fromNs, to_ns: toNs, window_ns: [fromNs, toNs], whole_ns: toNs, bin_ns: 1, left_out: 0, ranks_left_out: 0,
    tracks: [
      { label: "main", process: "", kind: "host", device: null, worker: 0, row: 0, rows: 2 },
      { label: "stream 7", process: "", kind: "device", device: 0, worker: 0, row: 2, rows: 1 },
    ],
    kinds: ["operator", "kernel"],
    texts,
    boxes: {
      row: boxes.map(([row]) => row),
      start_ns: boxes.map(([, , start]) => start - fromNs),
      duration_ns: boxes.map(([, , start, end]) => end - start),
      busy_ns: boxes.map(([, , start, end]) => end - start),
      count: boxes.map(([, , , , count = 1]) => count),
      event: boxes.map((_, at) => 100 + at),
      kind: boxes.map(([row]) => (row === 2 ? 1 : 0)),
      name: boxes.map(([, name]) => texts.indexOf(name)),
      module: boxes.map(() => -1),
      line: boxes.map(() => -1),
    },
    causes: { bins: 2, total_ns: { input: [30, 0], python: [10, 40] } },
    claims: [{ finding: 3, intervals: [[10, 20]] }],
    steps: [],
  };
}
