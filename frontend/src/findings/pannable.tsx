// Moves a range of time by dragging, the wheel and the keyboard.
import type { ComponentChildren, JSX } from "preact";
import { useEffect, useRef } from "preact/hooks";
import type { Range } from "../charts/timeline-chart";

/** Nothing is shorter in a trace. */
const NARROWEST_NS = 100;
/** Shorter movements are clicks. */
const DRAG_PX = 4;
const KEY_STRIDE = 0.2;
const KEY_ZOOM = 1.6;
/** A notch of a wheel is about 100 pixels. */
const WHEEL_ZOOM = 1.0025;

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

interface Props {
  range: Range;
  /** What `Home` goes back to. */
  initial: Range;
  wholeNs: number;
  move(range: Range): void;
  children: ComponentChildren;
}

export function Pannable(props: Props): JSX.Element {
  const place = useRef<HTMLDivElement>(null);
  // The listeners below outlive a rendering.
  const latest = useRef(props);
  latest.current = props;
  useEffect(() => {
    const element = place.current;
    if (!element) return undefined;
    let drag: { id: number; x: number; range: Range; isMoving: boolean } | null = null;
    const onDown = ({ button, pointerId: id, clientX: x }: PointerEvent): void => {
      if (button === 0) drag = { id, x, range: latest.current.range, isMoving: false };
    };
    const onMove = ({ pointerId, clientX }: PointerEvent): void => {
      if (drag?.id !== pointerId) return;
      const px = clientX - drag.x;
      if (!drag.isMoving && Math.abs(px) < DRAG_PX) return;
      if (!drag.isMoving) element.setPointerCapture(pointerId);
      drag.isMoving = true;
      latest.current.move(panned(drag.range, -px / element.clientWidth, latest.current.wholeNs));
    };
    const onUp = (): void => {
      drag = null;
    };
    // Not passive: zooming and panning take the place of scrolling. A plain wheel scrolls the page.
    const onWheel = (event: WheelEvent): void => {
      const { range, wholeNs, move } = latest.current;
      const isZoom = event.ctrlKey || event.metaKey;
      const across = event.shiftKey ? event.deltaX || event.deltaY : event.deltaX;
      if (!isZoom && Math.abs(across) <= (event.shiftKey ? 0 : Math.abs(event.deltaY))) return;
      event.preventDefault();
      const box = element.getBoundingClientRect();
      if (isZoom) move(zoomed(range, WHEEL_ZOOM ** event.deltaY, (event.clientX - box.left) / box.width, wholeNs));
      else move(panned(range, across / box.width, wholeNs));
    };
    // Before the chart's own listener, which keeps a press on an event to itself.
    element.addEventListener("pointerdown", onDown, { capture: true });
    element.addEventListener("pointermove", onMove);
    element.addEventListener("pointerup", onUp);
    element.addEventListener("pointercancel", onUp);
    element.addEventListener("wheel", onWheel, { passive: false });
    return () => {
      element.removeEventListener("pointerdown", onDown, { capture: true });
      element.removeEventListener("pointermove", onMove);
      element.removeEventListener("pointerup", onUp);
      element.removeEventListener("pointercancel", onUp);
      element.removeEventListener("wheel", onWheel);
    };
  }, []);
  const onKey = (event: KeyboardEvent): void => {
    const { range, wholeNs, move, initial } = props;
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const keys: Record<string, () => Range> = {
      ArrowLeft: () => panned(range, -KEY_STRIDE, wholeNs),
      ArrowRight: () => panned(range, KEY_STRIDE, wholeNs),
      "+": () => zoomed(range, 1 / KEY_ZOOM, 0.5, wholeNs),
      "=": () => zoomed(range, 1 / KEY_ZOOM, 0.5, wholeNs),
      "-": () => zoomed(range, KEY_ZOOM, 0.5, wholeNs),
      Home: () => initial,
    };
    const next = keys[event.key];
    if (!next) return;
    event.preventDefault();
    move(next());
  };
  return (
    <div
      ref={place}
      class="pannable"
      role="group"
      aria-label="Timeline: arrow keys move it, plus and minus zoom, Home goes back"
      title="Drag to move, Ctrl and wheel to zoom"
      tabIndex={0}
      onKeyDown={onKey}
    >
      {props.children}
    </div>
  );
}
