// The colors of the design, for a canvas, which knows no custom properties.
import { CAUSES } from "../causes";
import { causeOfKind } from "../charts/colors";

export interface Palette {
  surface: string;
  sunken: string;
  text: string;
  muted: string;
  border: string;
  accent: string;
  cause(cause: string): string;
  /** The fill of an event; a few shades tell neighbors of a kind apart. */
  event(kind: string, shade: number): string;
  font: string;
}

/** How much of the color of its kind the fill of an event has: text on it must be readable. */
const SHADES = [0.36, 0.44, 0.4, 0.48];

function channels(hex: string): [number, number, number] {
  const value = Number.parseInt(hex.slice(1), 16);
  return [(value >> 16) & 255, (value >> 8) & 255, value & 255];
}

/** A part of one color on another. */
export function mixed(color: string, ground: string, part: number): string {
  const [a, b] = [channels(color), channels(ground)];
  return `rgb(${a.map((value, at) => Math.round(value * part + (b[at] ?? 0) * (1 - part))).join(" ")})`;
}

export function readPalette(): Palette {
  const root = document.documentElement;
  const style = getComputedStyle(root);
  const read = (name: string): string => style.getPropertyValue(name).trim();
  const theme = root.dataset.theme === "dark" ? "dark" : "light";
  const surface = read("--surface");
  const cause = (name: string): string => (CAUSES[name] ?? CAUSES.unexplained)?.[theme] ?? "#707276";
  const fills = new Map<string, string[]>();
  return {
    surface,
    sunken: read("--sunken"),
    text: read("--text"),
    muted: read("--text-muted"),
    border: read("--border"),
    accent: read("--accent"),
    cause,
    event(kind, shade) {
      let shades = fills.get(kind);
      if (!shades) {
        shades = SHADES.map((part) => mixed(cause(causeOfKind(kind)), surface, part));
        fills.set(kind, shades);
      }
      return shades[shade % SHADES.length] ?? surface;
    },
    font: `11px ${getComputedStyle(document.body).fontFamily}`,
  };
}
