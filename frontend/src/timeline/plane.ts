// The part of a timeline that follows the hand: it draws frames and handles the pointer, the wheel and
// keys without rendering components, which hear of it when it has settled.
import { CAUSES_PX, HEAD_PX, type Scene, draw, drawCausesOf, parts } from "./drawing";
import { LANE_PX, layOut, placeAt } from "./layout";
import { type Palette, readPalette } from "./palette";
import { type Picture, boxAt, boxOfEvent, firstAfter } from "./picture";
import { type Range, between, isSameRange, panned, showing, zoomed } from "./range";

/** Shorter movements are clicks. */
const DRAG_PX = 4;
const KEY_STRIDE = 0.2;
const KEY_ZOOM = 1.6;
/** A notch of a wheel is about 100 pixels. */
const WHEEL_ZOOM = 1.0025;
/** How near the pointer must be to a thin box. */
const REACH_PX = 3;
/** While the timeline moves, tell of it this often. */
const TELL_MS = 150;
const MAX_RATIO = 2;
/** A call of this part of the view fills it. */
const FILLS = 0.9;
/** Of calls that fill the view, this many stay in sight at first. */
const SHOWN_OUTER = 3;

/** A box of a picture. */
export interface Hit {
  picture: Picture;
  box: number;
}

/** What is under the pointer: a time, and a box if there is one. */
export interface Pointed {
  x: number;
  y: number;
  atNs: number;
  picture: Picture | null;
  hit: Hit | null;
}

export interface Handlers {
  moved(range: Range): void;
  pointed(pointed: Pointed | null): void;
  pick(hit: Hit | null): void;
  toggle(track: number): void;
  /** Back to where the timeline began. */
  reset(): void;
  search(): void;
  /** The range whose time to sum up. */
  selected(range: Range | null): void;
  /** Sums up the chosen event's time, or what is in view. */
  mark(): void;
  /** Once the hand has scrolled, which `reveal` is not. */
  scrolled(topPx: number): void;
}

type Given = Pick<Scene, "pictures" | "tracks" | "names" | "closed" | "pick" | "chosen" | "matches" | "focus" | "findings" | "cause" | "selected" | "arrows" | "path">;

export class Plane {
  range: Range = { fromNs: 0, toNs: 1 };
  wholeNs = 1;
  private given: Given = {
    pictures: [], tracks: [], names: [], closed: new Set(), pick: -1, chosen: null, matches: null, focus: null, findings: [], cause: null,
    selected: null, arrows: [], path: null,
  };
  /** While a range is being dragged. */
  private selecting: Range | null = null;
  /** Where `reveal` has scrolled to, until the hand scrolls. */
  private revealed: number | null = 0;
  private scrolling = 0;
  private layout = layOut([], new Set());
  private palette: Palette = readPalette();
  private hovered: string | null = null;
  private readonly mapped: { canvas: HTMLCanvasElement; shown: unknown[] } = { canvas: document.createElement("canvas"), shown: [] };
  private frame = 0;
  private telling = 0;
  private readonly undo: (() => void)[] = [];

  constructor(
    private readonly place: HTMLElement,
    private readonly canvas: HTMLCanvasElement,
    private readonly map: HTMLCanvasElement,
    private readonly handlers: Handlers,
  ) {
    const themes = new MutationObserver(() => ((this.palette = readPalette()), this.redraw()));
    themes.observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme", "class"] });
    const sizes = new ResizeObserver(() => this.redraw());
    sizes.observe(place);
    this.undo.push(() => themes.disconnect(), () => sizes.disconnect());
    this.listen(place, "scroll", () => {
      this.redraw();
      if (this.revealed !== null && Math.abs(place.scrollTop - this.revealed) <= 1) return;
      this.revealed = null;
      clearTimeout(this.scrolling);
      this.scrolling = window.setTimeout(() => this.handlers.scrolled(Math.round(place.scrollTop)), TELL_MS);
    });
    this.listen(place, "wheel", (event) => this.onWheel(event as WheelEvent));
    this.listen(place, "keydown", (event) => this.onKey(event as KeyboardEvent));
    this.followPointer();
    this.followMap();
  }

  close(): void {
    cancelAnimationFrame(this.frame);
    clearTimeout(this.telling);
    clearTimeout(this.scrolling);
    for (const step of this.undo) step();
  }

  /** Shows something else; a range only if it differs from that before. */
  show(given: Given, range: Range | null, wholeNs: number): void {
    if (given.tracks !== this.given.tracks || given.closed !== this.given.closed) {
      this.layout = layOut(given.tracks, given.closed);
    }
    this.given = given;
    this.wholeNs = wholeNs;
    if (range && this.telling === 0) this.range = range;
    this.redraw();
  }

  /** Scrolls until a row is in view. */
  reveal(row: number): void {
    const top = this.layout.rowTop[row] ?? -1;
    if (top < 0) return;
    const room = this.place.clientHeight - HEAD_PX;
    const { scrollTop } = this.place;
    if (top < scrollTop || top + LANE_PX > scrollTop + room) this.scrollTo(Math.max(0, top - room / 2));
  }

  scrollTo(topPx: number): void {
    this.place.scrollTop = topPx;
    if (this.revealed !== null) this.revealed = this.place.scrollTop;
  }

  /** Scrolls past the outermost calls that each fill the view, such as the frames of the main program. */
  revealInner(): void {
    const { picture, range, layout } = this;
    const [track] = this.given.tracks;
    if (!picture || !track) return;
    const spanNs = range.toNs - range.fromNs;
    const middleNs = range.fromNs + spanNs / 2;
    let row = track.row;
    for (; row < track.row + track.rows - 1; row += 1) {
      const box = firstAfter(picture, row, middleNs);
      const [start, end] = [picture.startNs[box] ?? 0, picture.endNs[box] ?? 0];
      const isThere = box < (picture.first[row + 1] ?? 0);
      if (!isThere || Math.min(end, range.toNs) - Math.max(start, range.fromNs) < FILLS * spanNs) break;
    }
    if (row - track.row > SHOWN_OUTER) this.scrollTo(layout.rowTop[row - SHOWN_OUTER] ?? 0);
  }

  move(range: Range): void {
    if (isSameRange(range, this.range)) return;
    this.range = range;
    this.redraw();
    if (this.telling === 0) this.telling = window.setTimeout(() => ((this.telling = 0), this.handlers.moved(this.range)), TELL_MS);
  }

  zoom(factor: number, at = 0.5): void {
    this.move(zoomed(this.range, factor, at, this.wholeNs));
  }

  pan(part: number): void {
    this.move(panned(this.range, part, this.wholeNs));
  }

  /** Goes back to where the timeline began, also from a move that nobody has heard of yet. */
  private home(): void {
    clearTimeout(this.telling);
    this.telling = 0;
    this.handlers.reset();
  }

  private redraw(): void {
    if (this.frame === 0) this.frame = requestAnimationFrame(() => ((this.frame = 0), this.draw()));
  }

  private draw(): void {
    const { clientWidth: width, clientHeight: height } = this.place;
    // While another tab is in front, the frame has no height and widths mean nothing.
    if (width === 0 || height === 0) return;
    const context = fitted(this.canvas, width, height);
    if (!context) return;
    const scene: Scene = {
      ...this.given, width, height, scrolled: this.place.scrollTop, range: this.range,
      layout: this.layout, palette: this.palette, hovered: this.hovered, selected: this.selecting ?? this.given.selected,
    };
    draw(context, scene);
    this.drawMap();
    this.canvas.dataset.drawn = `${Math.round(this.range.fromNs)}-${Math.round(this.range.toNs)}`;
  }

  private drawMap(): void {
    const whole = this.given.pictures[0];
    const { clientWidth: width, clientHeight: height } = this.map;
    const context = width > 0 ? fitted(this.map, width, height) : null;
    if (!context) return;
    const { palette, range, wholeNs } = this;
    context.drawImage(this.wholeMap(whole, width, height), 0, 0, width, height);
    const [left, right] = [(range.fromNs / wholeNs) * width, (range.toNs / wholeNs) * width];
    context.globalAlpha = 0.65;
    context.fillStyle = palette.surface;
    context.fillRect(0, 0, left, height);
    context.fillRect(right, 0, width - right, height);
    context.globalAlpha = 1;
    context.strokeStyle = palette.text;
    context.lineWidth = 1.5;
    context.strokeRect(left + 0.75, 0.75, Math.max(right - left - 1.5, 2), height - 1.5);
  }

  /** The minimap without the range, which stays the same while the timeline moves. */
  private wholeMap(whole: Picture | undefined, width: number, height: number): HTMLCanvasElement {
    const { palette, wholeNs } = this;
    const { cause } = this.given;
    const shown = [whole, palette, cause, wholeNs, width, height, window.devicePixelRatio];
    if (shown.some((value, at) => value !== this.mapped.shown[at])) {
      this.mapped.shown = shown;
      const context = fitted(this.mapped.canvas, width, height);
      if (context) {
        context.fillStyle = palette.sunken;
        context.fillRect(0, 0, width, height);
        const all = { fromNs: 0, toNs: wholeNs };
        if (whole) drawCausesOf(context, whole, whole, all, width, 4, height - 8, palette, cause);
      }
    }
    return this.mapped.canvas;
  }

  private listen(target: HTMLElement, type: string, handle: (event: Event) => void): void {
    // Not passive: zooming and panning take the place of scrolling. A plain wheel scrolls.
    target.addEventListener(type, handle, { passive: false });
    this.undo.push(() => target.removeEventListener(type, handle));
  }

  private onWheel(event: WheelEvent): void {
    const isZoom = event.ctrlKey || event.metaKey;
    const across = event.shiftKey ? event.deltaX || event.deltaY : event.deltaX;
    if (!isZoom && Math.abs(across) <= (event.shiftKey ? 0 : Math.abs(event.deltaY))) return;
    event.preventDefault();
    const box = this.place.getBoundingClientRect();
    if (isZoom) this.zoom(WHEEL_ZOOM ** event.deltaY, (event.clientX - box.left) / box.width);
    else this.pan(across / box.width);
  }

  private onKey(event: KeyboardEvent): void {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const keys: Record<string, () => void> = {
      w: () => this.zoom(1 / KEY_ZOOM),
      s: () => this.zoom(KEY_ZOOM),
      a: () => this.pan(-KEY_STRIDE),
      d: () => this.pan(KEY_STRIDE),
      "+": () => this.zoom(1 / KEY_ZOOM),
      "=": () => this.zoom(1 / KEY_ZOOM),
      "-": () => this.zoom(KEY_ZOOM),
      Home: () => this.home(),
      f: () => this.fit(),
      m: () => this.handlers.mark(),
      "/": () => this.handlers.search(),
      Escape: () => {
        this.handlers.pointed(null);
        if (this.given.pick >= 0) this.handlers.pick(null);
        else this.handlers.selected(null);
      },
      ArrowLeft: () => this.step(-1),
      ArrowRight: () => this.step(1),
      ArrowUp: () => this.climb(-1),
      ArrowDown: () => this.climb(1),
    };
    const act = keys[event.key.length === 1 ? event.key.toLowerCase() : event.key];
    if (!act) return;
    event.preventDefault();
    act();
  }

  /** The most detailed picture of the middle of the range. */
  private get picture(): Picture | undefined {
    const middle = (this.range.fromNs + this.range.toNs) / 2;
    return parts({ range: this.range, pictures: this.given.pictures }).find(([from, to]) => from <= middle && middle <= to)?.[2];
  }

  private picked(): Hit | null {
    for (const picture of [...this.given.pictures].reverse()) {
      const box = this.given.pick < 0 ? -1 : boxOfEvent(picture, this.given.pick);
      if (box >= 0) return { picture, box };
    }
    return null;
  }

  /** The time of the event that is chosen. */
  pickedTime(): Range | null {
    const { chosen } = this.given;
    if (chosen) return { fromNs: chosen.start_ns, toNs: chosen.start_ns + chosen.duration_ns };
    const hit = this.picked();
    return hit && { fromNs: hit.picture.startNs[hit.box] ?? 0, toNs: hit.picture.endNs[hit.box] ?? 0 };
  }

  /** Zooms to the event that is chosen. */
  fit(): void {
    const stretch = this.pickedTime();
    if (!stretch) return;
    const { fromNs: start, toNs: end } = stretch;
    const spanNs = Math.max((end - start) * 1.25, 100);
    const fromNs = Math.max(0, (start + end - spanNs) / 2);
    this.move({ fromNs, toNs: fromNs + spanNs });
  }

  /** Chooses the neighbor of the chosen event on its row. */
  private step(by: 1 | -1): void {
    const hit = this.picked();
    if (!hit) return this.choose(this.visible());
    const { picture, box } = hit;
    const row = picture.answer.boxes.row[box];
    if (picture.answer.boxes.row[box + by] === row) this.choose({ picture, box: box + by });
  }

  /** Chooses the event above or below the chosen one: its caller, or the first call inside it. */
  private climb(by: 1 | -1): void {
    const hit = this.picked();
    if (!hit) return this.choose(this.visible());
    const { picture, box } = hit;
    const { rowTop } = this.layout;
    const [start, end] = [picture.startNs[box] ?? 0, picture.endNs[box] ?? 0];
    const from = Math.max(start, Math.min(this.range.fromNs, end));
    for (let row = (picture.answer.boxes.row[box] ?? 0) + by; row >= 0 && row < rowTop.length; row += by) {
      if ((rowTop[row] ?? -1) < 0) continue;
      const next = firstAfter(picture, row, from);
      if (next < (picture.first[row + 1] ?? 0) && (picture.startNs[next] ?? 0) < Math.max(end, this.range.toNs)) {
        return this.choose({ picture, box: next });
      }
    }
  }

  /** The first event in view: where keys begin. */
  private visible(): Hit | null {
    const { picture, layout } = this;
    if (!picture) return null;
    for (const [row, top] of layout.rowTop.entries()) {
      if (top < this.place.scrollTop) continue;
      const box = firstAfter(picture, row, this.range.fromNs);
      if (box < (picture.first[row + 1] ?? 0) && (picture.startNs[box] ?? 0) < this.range.toNs) return { picture, box };
    }
    return null;
  }

  private choose(hit: Hit | null): void {
    if (!hit) return;
    this.reveal(hit.picture.answer.boxes.row[hit.box] ?? -1);
    this.move(showing(this.range, hit.picture.startNs[hit.box] ?? 0, hit.picture.endNs[hit.box] ?? 0));
    this.handlers.pick(hit);
  }

  private timeAt(clientX: number): number {
    const { left, width } = this.place.getBoundingClientRect();
    return this.range.fromNs + ((clientX - left) / width) * (this.range.toNs - this.range.fromNs);
  }

  private pointedAt(event: PointerEvent | MouseEvent): Pointed & { track: number | null } {
    const { left, top, width } = this.place.getBoundingClientRect();
    const [x, y] = [event.clientX - left, event.clientY - top];
    const { range } = this;
    const atNs = this.timeAt(event.clientX);
    const found = y < HEAD_PX ? null : placeAt(this.given.tracks, this.layout, y - HEAD_PX + this.place.scrollTop);
    const picture = parts({ range, pictures: this.given.pictures }).find(([from, to]) => from <= atNs && atNs <= to)?.[2];
    const reachNs = (REACH_PX / width) * (range.toNs - range.fromNs);
    const box = picture && found?.row != null ? boxAt(picture, found.row, atNs, reachNs) : -1;
    const track = found && found.row === null ? found.track : null;
    return { x, y, atNs, picture: picture ?? null, hit: picture && box >= 0 ? { picture, box } : null, track };
  }

  private hover(pointed: Pointed | null): void {
    const hit = pointed?.hit;
    const name = hit ? (hit.picture.answer.texts[hit.picture.name[hit.box] ?? -1] ?? null) : null;
    if (name !== this.hovered) {
      this.hovered = name;
      this.redraw();
    }
    this.place.style.cursor = pointed && pointed.y < HEAD_PX ? "col-resize" : "";
    this.handlers.pointed(pointed && (pointed.hit || pointed.y < CAUSES_PX) ? pointed : null);
  }

  private followPointer(): void {
    let drag: { id: number; x: number; y: number; scrolled: number; range: Range; isMoving: boolean; selectsFromNs: number | null } | null = null;
    const { place } = this;
    this.listen(place, "pointerdown", (event) => {
      const { button, pointerId: id, clientX: x, clientY: y, shiftKey } = event as PointerEvent;
      // A press on the scroll bar is none of ours.
      const isInside = x < place.getBoundingClientRect().left + place.clientWidth;
      // From the head a drag selects, from the rows only with Shift.
      const isSelecting = shiftKey || y < place.getBoundingClientRect().top + HEAD_PX;
      const selectsFromNs = isSelecting ? this.timeAt(x) : null;
      if (button === 0 && isInside) drag = { id, x, y, scrolled: place.scrollTop, range: this.range, isMoving: false, selectsFromNs };
    });
    this.listen(place, "pointermove", (event) => {
      const moved = event as PointerEvent;
      if (drag === null) {
        if (moved.pointerType !== "touch") this.hover(this.pointedAt(moved));
        return;
      }
      if (drag.id !== moved.pointerId) return;
      const [across, down] = [moved.clientX - drag.x, moved.clientY - drag.y];
      if (!drag.isMoving && Math.hypot(across, down) < DRAG_PX) return;
      if (!drag.isMoving) {
        place.setPointerCapture(moved.pointerId);
        this.hover(null);
      }
      drag.isMoving = true;
      if (drag.selectsFromNs !== null) {
        this.selecting = between(drag.selectsFromNs, this.timeAt(moved.clientX), this.wholeNs);
        this.redraw();
        return;
      }
      this.move(panned(drag.range, -across / place.clientWidth, this.wholeNs));
      if (moved.pointerType !== "touch") place.scrollTop = drag.scrolled - down;
    });
    this.listen(place, "pointerup", (event) => {
      if (drag && !drag.isMoving) {
        const pointed = this.pointedAt(event as PointerEvent);
        if (pointed.track !== null) this.handlers.toggle(pointed.track);
        else if (pointed.y > HEAD_PX) this.handlers.pick(pointed.hit);
        else this.handlers.selected(null);
      }
      if (this.selecting) this.handlers.selected(this.selecting);
      this.selecting = null;
      drag = null;
    });
    this.listen(place, "pointercancel", () => ((drag = null), (this.selecting = null)));
    this.listen(place, "pointerleave", () => this.hover(null));
    this.listen(place, "dblclick", () => this.fit());
  }

  private followMap(): void {
    let isDown = false;
    const center = (event: PointerEvent): void => {
      const { left, width } = this.map.getBoundingClientRect();
      const spanNs = this.range.toNs - this.range.fromNs;
      const atNs = ((event.clientX - left) / width) * this.wholeNs;
      this.move(panned({ fromNs: atNs - spanNs / 2, toNs: atNs + spanNs / 2 }, 0, this.wholeNs));
    };
    this.listen(this.map, "pointerdown", (event) => {
      isDown = true;
      this.map.setPointerCapture((event as PointerEvent).pointerId);
      center(event as PointerEvent);
    });
    this.listen(this.map, "pointermove", (event) => isDown && center(event as PointerEvent));
    this.listen(this.map, "pointerup", () => (isDown = false));
  }
}

/** The context of a canvas of a size in CSS pixels, as sharp as the screen. */
function fitted(canvas: HTMLCanvasElement, width: number, height: number): CanvasRenderingContext2D | null {
  const ratio = Math.min(window.devicePixelRatio || 1, MAX_RATIO);
  const [w, h] = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width !== w) canvas.width = w;
  if (canvas.height !== h) canvas.height = h;
  const context = canvas.getContext("2d", { alpha: false });
  context?.setTransform(ratio, 0, 0, ratio, 0, 0);
  return context;
}
