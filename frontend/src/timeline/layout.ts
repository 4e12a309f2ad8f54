// Where the rows of a timeline are: tracks below one another, each with its name above its lanes.
import type { Track } from "../state/answers";

export const LANE_PX = 17;
export const NAME_PX = 18;
/** Between tracks. */
const GAP_PX = 5;

export interface Layout {
  /** The top of each row, -1 if its track is closed. */
  rowTop: Int32Array;
  /** The top of each track's name. */
  trackTop: Int32Array;
  height: number;
}

/** Closed tracks show only their names; `closed` has their places. */
export function layOut(tracks: Track[], closed: ReadonlySet<number>): Layout {
  const rowTop = new Int32Array(tracks.reduce((sum, { rows }) => sum + rows, 0)).fill(-1);
  const trackTop = new Int32Array(tracks.length);
  let top = 0;
  for (const [at, { row, rows }] of tracks.entries()) {
    trackTop[at] = top;
    top += NAME_PX;
    if (!closed.has(at)) {
      for (let lane = 0; lane < rows; lane += 1) rowTop[row + lane] = top + lane * LANE_PX;
      top += rows * LANE_PX;
    }
    top += GAP_PX;
  }
  return { rowTop, trackTop, height: top };
}

export type Place = { track: number; row: number | null };

/** What is at a height: a row, or the name of a track. */
export function placeAt(tracks: Track[], { rowTop, trackTop }: Layout, y: number): Place | null {
  for (let track = tracks.length - 1; track >= 0; track -= 1) {
    const top = trackTop[track] ?? 0;
    if (y < top) continue;
    if (y < top + NAME_PX) return { track, row: null };
    const { row: first, rows } = tracks[track] ?? { row: 0, rows: 0 };
    const lane = Math.floor((y - top - NAME_PX) / LANE_PX);
    const isOpen = lane < rows && (rowTop[first + lane] ?? -1) >= 0;
    return isOpen ? { track, row: first + lane } : null;
  }
  return null;
}

/** The name of a track; `ranks` are those of the workers, empty if there is only one. */
export function trackName({ label, process, kind, device, worker }: Track, ranks: readonly (number | null)[]): string {
  const name = label || process || (kind === "device" ? `device ${device ?? 0}` : "thread");
  return ranks.length > 1 ? `rank ${ranks[worker] ?? worker}: ${name}` : name;
}
