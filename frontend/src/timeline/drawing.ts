// Draws a timeline on a canvas: causes, steps and an axis above, and the rows of all tracks below.
import type { CriticalPath, EventInfo, Track } from "../state/answers";
import { formatDuration, tickLabels } from "../format";
import type { Arrow } from "./arrows";
import { type Layout, LANE_PX, NAME_PX } from "./layout";
import type { Palette } from "./palette";
import { type Picture, firstAfter } from "./picture";
import type { Range } from "./range";

export const CAUSES_PX = 16;
const AXIS_PX = 20;
const CLAIMS_PX = 5;
const STEPS_PX = 15;
/** What is above the rows. */
export const HEAD_PX = CAUSES_PX + CLAIMS_PX + STEPS_PX + AXIS_PX;
/** The thickness of the critical path, in the row of a track's name. */
const PATH_PX = 4;
const LETTER_PX = 6.1;
/** Narrower boxes have no text. */
const LABELED_PX = 30;
const TICK_PX = 110;
/** Boxes wider than this leave a pixel to the next one. */
const GAPPED_PX = 3;

export interface Scene {
  width: number;
  height: number;
  /** How far the rows are scrolled up. */
  scrolled: number;
  range: Range;
  /** From the coarsest to the most detailed; later ones cover earlier ones. */
  pictures: Picture[];
  tracks: Track[];
  names: string[];
  layout: Layout;
  closed: ReadonlySet<number>;
  palette: Palette;
  /** The event that is chosen; -1 for none. */
  pick: number;
  /** What the server says of it: it may share a box with others. */
  chosen: EventInfo | null;
  /** The name of the event under the pointer: its namesakes are outlined. */
  hovered: string | null;
  /** If a text is searched for, whether each text of a picture has it. */
  matches: ((picture: Picture) => boolean[]) | null;
  /** The box that the timeline is about, as start, end and row. */
  focus: { startNs: number; endNs: number; row: number } | null;
  /** Findings whose time is marked. */
  findings: readonly number[];
  /** The cause to show alone in the ribbon. */
  cause: string | null;
  /** The range whose time is summed up. */
  selected: Range | null;
  arrows: readonly Arrow[];
  path: CriticalPath | null;
}

type Context = CanvasRenderingContext2D;

export function draw(context: Context, scene: Scene): void {
  const { width, height, palette } = scene;
  context.globalAlpha = 1;
  context.fillStyle = palette.surface;
  context.fillRect(0, 0, width, height);
  context.font = palette.font;
  context.textBaseline = "middle";
  drawGrid(context, scene);
  context.save();
  context.beginPath();
  context.rect(0, HEAD_PX, width, height - HEAD_PX);
  context.clip();
  drawClaims(context, scene, HEAD_PX, height - HEAD_PX, 0.1);
  for (const [from, to, picture] of parts(scene)) drawRows(context, scene, picture, from, to);
  drawFocus(context, scene);
  drawChosen(context, scene);
  drawTrackNames(context, scene);
  drawPath(context, scene);
  drawArrows(context, scene);
  context.restore();
  drawSteps(context, scene);
  for (const [from, to, picture] of parts(scene)) drawCauses(context, scene, picture, from, to);
  drawClaims(context, scene, CAUSES_PX + 1, CLAIMS_PX - 2, 1);
  drawSelected(context, scene);
}

/** Each stretch of the range with the most detailed picture that covers it. */
export function parts({ range, pictures }: Pick<Scene, "range" | "pictures">): [from: number, to: number, picture: Picture][] {
  const [coarse, fine] = [pictures[0], pictures.at(-1)];
  if (!coarse || !fine) return [];
  const from = Math.max(range.fromNs, fine.fromNs);
  const to = Math.min(range.toNs, fine.toNs);
  const all: [number, number, Picture][] =
    coarse === fine || from >= to
      ? [[range.fromNs, range.toNs, coarse]]
      : [[range.fromNs, from, coarse], [from, to, fine], [to, range.toNs, coarse]];
  return all
    .map(([start, end, picture]): [number, number, Picture] => [Math.max(start, picture.fromNs), Math.min(end, picture.toNs), picture])
    .filter(([start, end]) => start < end);
}

const scaleOf = ({ range, width }: Scene): number => width / (range.toNs - range.fromNs);

/** The times of round numbers in a range. */
export function ticksIn({ fromNs, toNs }: Range, most: number): number[] {
  const rough = (toNs - fromNs) / Math.max(most, 1);
  const power = 10 ** Math.floor(Math.log10(Math.max(rough, 1)));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough) ?? 10 * power;
  const ticks = [];
  for (let at = Math.ceil(fromNs / step) * step; at <= toNs; at += step) ticks.push(at);
  return ticks;
}

function drawGrid(context: Context, scene: Scene): void {
  const { width, height, range, palette, pictures } = scene;
  const scale = scaleOf(scene);
  const most = Math.max(2, Math.floor(width / TICK_PX));
  const label = tickLabels(range.fromNs, range.toNs, most, "ns");
  const middle = HEAD_PX - AXIS_PX / 2;
  context.textAlign = "left";
  for (const at of ticksIn(range, most)) {
    const x = Math.round((at - range.fromNs) * scale);
    context.fillStyle = palette.border;
    context.fillRect(x, HEAD_PX - AXIS_PX, 1, height);
    context.fillStyle = palette.muted;
    context.fillText(label(at), x + 4, middle);
  }
  const picture = pictures.at(-1);
  context.fillStyle = palette.muted;
  for (const [, start] of picture?.answer.steps ?? []) {
    const x = Math.round((start + (picture?.fromNs ?? 0) - range.fromNs) * scale);
    if (x >= 0 && x < width) context.fillRect(x, CAUSES_PX + CLAIMS_PX, 1.5, height);
  }
}

/** A stretch of the band of steps: its time, and its labels, the longest first. */
type Band = [startNs: number, endNs: number, labels: string[]];

/** The steps of a picture, and the time of the recording that is not analyzed. */
export function bandsOf({ answer, fromNs }: Picture): Band[] {
  const [startNs, endNs] = answer.window_ns;
  const outside: Band[] = [
    [0, startNs, ["Not analyzed", "–"]],
    [endNs, answer.whole_ns, ["Not analyzed", "–"]],
  ];
  const steps = answer.steps.map(([number, start, end]): Band => [start + fromNs, end + fromNs, [`Step ${number}`, String(number)]]);
  return endNs > startNs ? [...steps, ...outside.filter(([start, end]) => start < end)] : steps;
}

/** What each stretch between the lines of steps is, also that at the margins. */
function drawSteps(context: Context, scene: Scene): void {
  const { range, width, palette, pictures } = scene;
  const picture = pictures.at(-1);
  if (!picture) return;
  const scale = scaleOf(scene);
  const top = CAUSES_PX + CLAIMS_PX;
  context.fillStyle = palette.sunken;
  context.fillRect(0, top, width, STEPS_PX);
  context.textAlign = "left";
  for (const [startNs, endNs, labels] of bandsOf(picture)) {
    const [left, right] = [Math.max((startNs - range.fromNs) * scale, 0), Math.min((endNs - range.fromNs) * scale, width)];
    const label = labels.find((text) => text.length * LETTER_PX + 8 <= right - left);
    if (!label) continue;
    context.fillStyle = palette.muted;
    context.fillText(label, left + 4, top + STEPS_PX / 2 + 0.5);
  }
}

/** Dims what is not selected, and says how long the range is. */
function drawSelected(context: Context, scene: Scene): void {
  const { selected, range, palette, width, height } = scene;
  if (!selected) return;
  const scale = scaleOf(scene);
  const [left, right] = [(selected.fromNs - range.fromNs) * scale, (selected.toNs - range.fromNs) * scale];
  context.globalAlpha = 0.12;
  context.fillStyle = palette.accent;
  context.fillRect(left, 0, right - left, height);
  context.globalAlpha = 1;
  for (const x of [left, right]) context.fillRect(Math.round(x) - 0.5, 0, 1, height);
  if (right < 0 || left > width) return;
  const text = formatDuration(selected.toNs - selected.fromNs);
  const wide = text.length * LETTER_PX + 8;
  const x = Math.min(Math.max((Math.max(left, 0) + Math.min(right, width) - wide) / 2, 0), width - wide);
  context.fillRect(x, HEAD_PX - AXIS_PX + 2, wide, AXIS_PX - 4);
  context.fillStyle = palette.surface;
  context.fillText(text, x + 4, HEAD_PX - AXIS_PX / 2 + 0.5);
}

/** The middle of a row on the screen; of its track's name if the track is closed. */
function middleOf({ layout, tracks, scrolled }: Scene, row: number): number {
  const top = layout.rowTop[row] ?? -1;
  if (top >= 0) return top + LANE_PX / 2 + HEAD_PX - scrolled;
  const track = tracks.findIndex((each) => each.row <= row && row < each.row + each.rows);
  return (layout.trackTop[track] ?? 0) + NAME_PX / 2 + HEAD_PX - scrolled;
}

function drawArrows(context: Context, scene: Scene): void {
  const { arrows, range, palette, width } = scene;
  const scale = scaleOf(scene);
  context.strokeStyle = context.fillStyle = palette.text;
  context.lineWidth = 1.25;
  for (const { from, to } of arrows) {
    const [x, y] = [(from.atNs - range.fromNs) * scale, middleOf(scene, from.row)];
    const [endX, endY] = [(to.atNs - range.fromNs) * scale, middleOf(scene, to.row)];
    if (Math.max(x, endX) < 0 || Math.min(x, endX) > width) continue;
    const bend = Math.min(Math.max(Math.abs(endX - x) / 2, 12), 80);
    context.beginPath();
    context.moveTo(x, y);
    context.bezierCurveTo(x + bend, y, endX - bend, endY, endX - 5, endY);
    context.stroke();
    context.beginPath();
    context.moveTo(endX, endY);
    context.lineTo(endX - 6, endY - 3.5);
    context.lineTo(endX - 6, endY + 3.5);
    context.fill();
  }
}

/** A bar in the row of each track's name while the path is there, and lines where it changes the track. */
function drawPath(context: Context, scene: Scene): void {
  const { path, range, palette, layout, scrolled, width } = scene;
  if (!path) return;
  const scale = scaleOf(scene);
  const bottomOf = (track: number): number => (layout.trackTop[track] ?? 0) + NAME_PX + HEAD_PX - scrolled;
  context.fillStyle = palette.accent;
  let [before, lined] = [-1, -1];
  for (const [track, fromNs, toNs] of path.segments) {
    const [x, end] = [(fromNs - range.fromNs) * scale, (toNs - range.fromNs) * scale];
    if (x > width) break;
    if (end >= 0) {
      const y = bottomOf(track);
      context.fillRect(x, y - PATH_PX, Math.max(end - x, 1), PATH_PX);
      // One line in each pixel.
      if (before >= 0 && before !== track && Math.round(x) !== lined) {
        lined = Math.round(x);
        const from = bottomOf(before);
        context.fillRect(lined, Math.min(from, y) - PATH_PX, 1, Math.abs(y - from) + PATH_PX);
      }
    }
    before = track;
  }
}

/** `train.py(12): step` with what it does first: `step  train.py:12`. */
const captionOf = (name: string): string => !name.includes("): ") ? name : name.replace(/^([^()]*)\((\d+)\): (.*)$/s, "$3  $1:$2");

function drawRows(context: Context, scene: Scene, picture: Picture, fromNs: number, toNs: number): void {
  const { range, palette, layout, tracks, scrolled, height, matches, pick, hovered } = scene;
  const scale = scaleOf(scene);
  const { kinds, texts, boxes } = picture.answer;
  const isMatch = matches && matches(picture);
  const hover = hovered === null ? -1 : texts.indexOf(hovered);
  const [left, right] = [(fromNs - range.fromNs) * scale, (toNs - range.fromNs) * scale];
  // Boxes that begin and end at pixels of the screen are filled faster than those with blurred edges.
  const ratio = context.getTransform().a;
  const snap = (x: number): number => Math.round(x * ratio) / ratio;
  // By color, because a frame has tens of thousands of boxes, and changing the color takes as long as one.
  const bright = new Map<string, number[]>();
  const dim = new Map<string, number[]>();
  const outlined: [isPicked: boolean, x: number, y: number, wide: number][] = [];
  const labels: number[] = [];
  for (const [at, track] of tracks.entries()) {
    const top = (layout.trackTop[at] ?? 0) + HEAD_PX - scrolled;
    if (top > height) break;
    for (let row = track.row; row < track.row + track.rows; row += 1) {
      const y = (layout.rowTop[row] ?? -1) + HEAD_PX - scrolled;
      if ((layout.rowTop[row] ?? -1) < 0 || y + LANE_PX < HEAD_PX || y > height) continue;
      const last = picture.first[row + 1] ?? 0;
      let drawnTo = -1;
      for (let box = firstAfter(picture, row, fromNs); box < last; box += 1) {
        const start = picture.startNs[box] ?? 0;
        if (start >= toNs) break;
        const x = snap(Math.max((start - range.fromNs) * scale, left));
        const end = snap(Math.min(((picture.endNs[box] ?? 0) - range.fromNs) * scale, right));
        const isPicked = boxes.event[box] === pick;
        // Boxes thinner than half a pixel would hide behind one another.
        if (end < drawnTo + 0.5 && !isPicked) continue;
        const name = picture.name[box] ?? -1;
        // Leave a pixel between neighbors, but draw nothing too thin to see.
        const wide = Math.max(end - x - (end - x > GAPPED_PX ? 1 : 0), 1);
        drawnTo = x + wide;
        const color = palette.event(kinds[picture.kind[box] ?? 0] ?? "", name);
        const group = isMatch !== null && !(isMatch[name] ?? false) ? dim : bright;
        const boxesOfColor = group.get(color);
        if (boxesOfColor) boxesOfColor.push(x, y, wide);
        else group.set(color, [x, y, wide]);
        if (isPicked || (name === hover && name >= 0)) outlined.push([isPicked, x, y, wide]);
        if (wide >= LABELED_PX && name >= 0) labels.push(box, x, y, wide);
      }
    }
  }
  context.globalAlpha = 0.25;
  fillBoxes(context, dim);
  context.globalAlpha = 1;
  fillBoxes(context, bright);
  for (const [isPicked, x, y, wide] of outlined) {
    context.strokeStyle = isPicked ? palette.accent : palette.muted;
    context.lineWidth = isPicked ? 2 : 1;
    context.strokeRect(x + 0.5, y + 1.5, Math.max(wide - 1, 1), LANE_PX - 3);
  }
  context.fillStyle = palette.text;
  context.textAlign = "left";
  for (let place = 0; place < labels.length; place += 4) {
    const [box = 0, x = 0, y = 0, wide = 0] = [labels[place], labels[place + 1], labels[place + 2], labels[place + 3]];
    const name = captionOf(texts[picture.name[box] ?? -1] ?? "");
    const room = Math.floor((wide - 8) / LETTER_PX);
    const text = name.length <= room ? name : `${name.slice(0, Math.max(room - 1, 0))}…`;
    if (room >= 3) context.fillText(text, x + 4, y + LANE_PX / 2 + 0.5);
  }
}

/** Boxes of one lane's height, as x, y and width, by color. */
function fillBoxes(context: Context, byColor: ReadonlyMap<string, readonly number[]>): void {
  for (const [color, boxes] of byColor) {
    context.fillStyle = color;
    for (let at = 0; at < boxes.length; at += 3) {
      context.fillRect(boxes[at] ?? 0, (boxes[at + 1] ?? 0) + 1, boxes[at + 2] ?? 0, LANE_PX - 2);
    }
  }
}

function drawTrackNames(context: Context, { layout, names, closed, palette, scrolled, height, width }: Scene): void {
  context.textAlign = "left";
  for (const [at, name] of names.entries()) {
    const y = (layout.trackTop[at] ?? 0) + HEAD_PX - scrolled;
    if (y > height) break;
    if (y + NAME_PX < HEAD_PX) continue;
    const room = Math.floor(width / LETTER_PX) - 4;
    const text = `${closed.has(at) ? "▸" : "▾"} ${name.length <= room ? name : `${name.slice(0, room)}…`}`;
    context.fillStyle = palette.sunken;
    context.fillRect(0, y, width, NAME_PX);
    context.fillStyle = palette.muted;
    context.fillText(text, 4, y + NAME_PX / 2 + 0.5);
  }
}

function drawFocus(context: Context, scene: Scene): void {
  const { focus, range, layout, scrolled, palette, height } = scene;
  if (!focus) return;
  const scale = scaleOf(scene);
  const x = (focus.startNs - range.fromNs) * scale;
  const wide = Math.max((focus.endNs - focus.startNs) * scale, 2);
  if (focus.row < 0) {
    // A stretch of time, or calls of several names, have no event to outline.
    context.globalAlpha = 0.1;
    context.fillStyle = palette.accent;
    context.fillRect(x, HEAD_PX, wide, height);
    context.globalAlpha = 1;
    return;
  }
  const top = layout.rowTop[focus.row] ?? -1;
  if (top < 0) return;
  context.strokeStyle = palette.text;
  context.lineWidth = 1.5;
  context.strokeRect(x + 0.5, top + HEAD_PX - scrolled + 1.5, Math.max(wide - 1, 1), LANE_PX - 3);
}

function drawChosen(context: Context, scene: Scene): void {
  const { chosen, range, layout, scrolled, palette } = scene;
  const top = layout.rowTop[chosen?.row ?? -1] ?? -1;
  if (!chosen || top < 0) return;
  const scale = scaleOf(scene);
  context.strokeStyle = palette.accent;
  context.lineWidth = 2;
  const wide = Math.max(chosen.duration_ns * scale - 1, 2);
  context.strokeRect((chosen.start_ns - range.fromNs) * scale + 0.5, top + HEAD_PX - scrolled + 1.5, wide, LANE_PX - 3);
}

/** The time of causes, from the bottom up in each pixel: exact, however far zoomed out. */
function drawCauses(context: Context, scene: Scene, picture: Picture, fromNs: number, toNs: number): void {
  const { range, palette, cause: chosen, width } = scene;
  drawCausesOf(context, picture, { fromNs, toNs }, range, width, 0, CAUSES_PX, palette, chosen);
}

export function drawCausesOf(
  context: Context,
  { answer, fromNs: start, toNs: end }: Picture,
  { fromNs, toNs }: Range,
  range: Range,
  width: number,
  top: number,
  height: number,
  palette: Palette,
  chosen: string | null,
): void {
  const { bins, total_ns: totals } = answer.causes;
  const binNs = (end - start) / bins;
  const scale = width / (range.toNs - range.fromNs);
  const first = Math.max(Math.floor((fromNs - start) / binNs), 0);
  const last = Math.min(Math.ceil((toNs - start) / binNs), bins);
  const filled = new Float64Array(Math.max(last - first, 0));
  for (const [cause, ns] of Object.entries(totals)) {
    context.fillStyle = palette.cause(cause);
    context.globalAlpha = chosen === null || chosen === cause ? 1 : 0.25;
    for (let bin = first; bin < last; ) {
      const share = shareOf(ns[bin], binNs);
      // Equal neighbors are one box.
      let next = bin + 1;
      const below = filled[bin - first] ?? 0;
      while (next < last && shareOf(ns[next], binNs) === share && filled[next - first] === below) next += 1;
      if (share > 0) {
        // On whole pixels, as the ground would shine through between neighbors.
        const x = Math.floor(Math.max(start + bin * binNs - range.fromNs, fromNs - range.fromNs) * scale);
        const to = Math.ceil(Math.min(start + next * binNs - range.fromNs, toNs - range.fromNs) * scale);
        context.fillRect(x, top + height - (below + share) * height, to - x, share * height);
        for (let at = bin; at < next; at += 1) filled[at - first] = below + share;
      }
      bin = next;
    }
  }
  context.globalAlpha = 1;
}

/** Bins have whole nanoseconds, so a full one may be a nanosecond longer or shorter. */
const shareOf = (ns: number | undefined, binNs: number): number => {
  const share = (ns ?? 0) / binNs;
  return share > 0.995 ? 1 : share;
};

function drawClaims(context: Context, scene: Scene, top: number, height: number, alpha: number): void {
  const { range, palette, findings } = scene;
  if (findings.length === 0) return;
  const scale = scaleOf(scene);
  context.globalAlpha = alpha;
  context.fillStyle = palette.accent;
  for (const [fromNs, toNs, { answer, fromNs: origin }] of parts(scene)) {
    for (const { finding, intervals } of answer.claims) {
      if (!findings.includes(finding)) continue;
      for (const [start, end] of intervals) {
        const from = Math.max(start + origin, fromNs);
        const to = Math.min(end + origin, toNs);
        if (from < to) context.fillRect((from - range.fromNs) * scale, top, Math.max((to - from) * scale, 1), height);
      }
    }
  }
  context.globalAlpha = 1;
}
