// A tree of calls as a flame graph that hangs from the top: each call as wide as its time.
import type { JSX } from "preact";
import { useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { formatDuration, formatShare } from "../../format";
import { type Palette, readPalette } from "../../timeline/palette";
import { type CallNode, type Found, pathTo } from "./tree";

interface Props {
  top: CallNode;
  label: string;
  found: Found | null;
  steps: number;
  /** What fills the width; the top at first. */
  root: CallNode;
  zoom(node: CallNode): void;
  chosen: CallNode | null;
  choose(node: CallNode): void;
}

interface Box {
  node: CallNode;
  depth: number;
  /** Parts of the width. */
  from: number;
  to: number;
}

const ROW_PX = 18;
const LETTER_PX = 6.1;
/** Thinner boxes are not drawn. */
const LEAST_PX = 0.4;

/** The boxes that are wide enough to see: what is around the root over the whole width, then what is inside. */
export function layOutFlames(root: CallNode, widthPx: number): Box[] {
  const around = root.caller ? pathTo(root) : [];
  const boxes: Box[] = around.map((node, depth) => ({ node, depth, from: 0, to: 1 }));
  const least = LEAST_PX / Math.max(widthPx, 1);
  const add = (node: CallNode, depth: number, from: number, scale: number): void => {
    let at = from;
    for (const inner of node.inside) {
      const wide = inner.totalNs * scale;
      if (wide >= least) {
        boxes.push({ node: inner, depth, from: at, to: at + wide });
        add(inner, depth + 1, at, scale);
      }
      at += wide;
    }
  };
  add(root, around.length, 0, 1 / Math.max(root.totalNs, 1));
  return boxes;
}

export function FlameGraph(props: Props): JSX.Element {
  const { top, label, found, steps, root, zoom, chosen, choose } = props;
  const place = useRef<HTMLDivElement>(null);
  const canvas = useRef<HTMLCanvasElement>(null);
  const [width, setWidth] = useState(0);
  const [theme, setTheme] = useState(0);
  const [hovered, setHovered] = useState<{ box: Box; x: number; y: number } | null>(null);
  useLayoutEffect(() => {
    const element = place.current;
    if (!element) return undefined;
    const measure = (): void => setWidth(element.clientWidth);
    measure();
    const sizes = new ResizeObserver(measure);
    sizes.observe(element);
    const themes = new MutationObserver(() => setTheme((count) => count + 1));
    themes.observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme", "class"] });
    return () => (sizes.disconnect(), themes.disconnect());
  }, []);
  const boxes = useMemo(() => layOutFlames(root, width), [root, width]);
  const palette = useMemo(readPalette, [theme, width > 0]);
  const rows = boxes.reduce((most, { depth }) => Math.max(most, depth + 1), 1);
  const height = rows * ROW_PX;
  useLayoutEffect(() => {
    const context = canvas.current?.getContext("2d", { alpha: false });
    if (!canvas.current || !context || width === 0) return;
    const ratio = Math.min(window.devicePixelRatio || 1, 2);
    canvas.current.width = Math.round(width * ratio);
    canvas.current.height = Math.round(height * ratio);
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    drawFlames(context, boxes, { width, height, palette, found, chosen, root });
  }, [boxes, width, height, palette, found, chosen]);
  const boxAt = (event: MouseEvent): { box: Box | undefined; x: number; y: number } => {
    const { left, top: above } = canvas.current?.getBoundingClientRect() ?? { left: 0, top: 0 };
    const [x, y] = [event.clientX - left, event.clientY - above];
    const depth = Math.floor(y / ROW_PX);
    return { box: boxes.find((box) => box.depth === depth && box.from * width <= x && x < box.to * width), x, y };
  };
  const neighbor = (node: CallNode, by: number): CallNode | undefined => {
    const siblings = node.caller?.inside ?? [];
    return siblings[siblings.indexOf(node) + by];
  };
  const onKey = (event: KeyboardEvent): void => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const node = chosen ?? root.inside[0];
    if (!node) return;
    const to = (next: CallNode | null | undefined): void => void (next && next !== top && choose(next));
    const keys: Record<string, () => void> = {
      ArrowDown: () => to(chosen ? node.inside[0] : node),
      ArrowUp: () => to(node.caller),
      ArrowLeft: () => to(neighbor(node, -1)),
      ArrowRight: () => to(neighbor(node, 1)),
      Enter: () => zoom(node),
      Escape: () => zoom(root.caller ?? top),
    };
    const act = keys[event.key];
    if (!act) return;
    event.preventDefault();
    act();
  };
  const tip = hovered && describe(hovered.box.node, top, steps);
  return (
    <div
      ref={place}
      class="flames"
      role="application"
      aria-roledescription="flame graph"
      aria-label={`${label}. Arrow keys choose calls, Enter zooms to the chosen one, Escape zooms out.`}
      tabIndex={0}
      onKeyDown={onKey}
      onMouseMove={(event) => {
        const { box, x, y } = boxAt(event);
        setHovered(box ? { box, x, y } : null);
      }}
      onMouseLeave={() => setHovered(null)}
      onClick={(event) => {
        const { box } = boxAt(event);
        if (box) choose(box.node);
      }}
      onDblClick={(event) => {
        const { box } = boxAt(event);
        if (box) zoom(box.node === root ? (root.caller ?? top) : box.node);
      }}
    >
      <canvas ref={canvas} aria-hidden="true" style={{ width: "100%", height: `${height}px` }} data-boxes={boxes.length} />
      {hovered && tip && (
        <div
          class="timeline-tip"
          aria-hidden="true"
          style={{ top: `${hovered.y + 16}px`, ...(hovered.x > width / 2 ? { right: `${width - hovered.x}px` } : { left: `${hovered.x + 12}px` }) }}
        >
          <strong>{hovered.box.node.name}</strong>
          <span>{tip}</span>
        </div>
      )}
    </div>
  );
}

/** Its time, and the part of all. */
export const describe = (node: CallNode, top: CallNode, steps: number): string =>
  `${formatDuration(node.totalNs / steps)} (${formatShare(top.totalNs ? node.totalNs / top.totalNs : null)}), itself ${formatDuration(node.selfNs / steps)}`;

interface Look {
  width: number;
  height: number;
  palette: Palette;
  found: Found | null;
  chosen: CallNode | null;
  root: CallNode;
}

function drawFlames(context: CanvasRenderingContext2D, boxes: Box[], { width, height, palette, found, chosen, root }: Look): void {
  context.fillStyle = palette.surface;
  context.fillRect(0, 0, width, height);
  context.font = palette.font;
  context.textBaseline = "middle";
  const around = new Set(root.caller ? pathTo(root).slice(0, -1) : []);
  for (const { node, depth, from, to } of boxes) {
    const [x, y, wide] = [from * width, depth * ROW_PX, Math.max((to - from) * width - 0.75, 0.5)];
    const isDim = found !== null && !found.matches.has(node);
    context.globalAlpha = isDim ? 0.3 : around.has(node) ? 0.55 : 1;
    context.fillStyle = palette.event(node.kind, node.name.length);
    context.fillRect(x, y + 0.5, wide, ROW_PX - 1.5);
    if (node === chosen) {
      context.globalAlpha = 1;
      context.strokeStyle = palette.accent;
      context.lineWidth = 2;
      context.strokeRect(x + 1, y + 1.5, Math.max(wide - 2, 1), ROW_PX - 3.5);
    }
    const room = Math.floor((wide - 8) / LETTER_PX);
    if (room < 3) continue;
    context.globalAlpha = 1;
    context.fillStyle = palette.text;
    context.fillText(node.name.length <= room ? node.name : `${node.name.slice(0, room - 1)}…`, x + 4, y + ROW_PX / 2);
  }
  context.globalAlpha = 1;
}
