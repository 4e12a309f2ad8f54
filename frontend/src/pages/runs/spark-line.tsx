// A small line of step times, the oldest at the left.
import type { JSX } from "preact";
import { formatDuration } from "../../format";

const WIDTH = 96;
const HEIGHT = 22;
const EDGE = 3;
/** More points than this are closer than a pixel. */
const MOST = 90;

/** The points of the line, from the bottom for 0 to the top for the longest step. */
export function sparkPoints(times: readonly number[]): [x: number, y: number][] {
  const shown = times.slice(-MOST);
  const most = Math.max(...shown, 1);
  return shown.map((ns, place) => [
    EDGE + (place / Math.max(shown.length - 1, 1)) * (WIDTH - 2 * EDGE),
    HEIGHT - EDGE - (ns / most) * (HEIGHT - 2 * EDGE),
  ]);
}

export function SparkLine({ times }: { times: readonly number[] }): JSX.Element | null {
  if (times.length < 2) return null;
  const points = sparkPoints(times);
  const [x, y] = points.at(-1) ?? [0, 0];
  const label = `Step time of ${times.length} recordings: ${formatDuration(times[0] ?? 0)} first, ${formatDuration(times.at(-1) ?? 0)} last`;
  return (
    <svg class="spark" width={WIDTH} height={HEIGHT} viewBox={`0 0 ${WIDTH} ${HEIGHT}`} role="img" aria-label={label}>
      <title>{label}</title>
      <polyline points={points.map((point) => point.map((value) => value.toFixed(1)).join(",")).join(" ")} />
      <circle cx={x.toFixed(1)} cy={y.toFixed(1)} r="2.5" />
    </svg>
  );
}
