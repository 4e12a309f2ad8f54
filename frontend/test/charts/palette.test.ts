// The colors of causes, in both themes: contrast, and distance for usual and color-blind eyes.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { CAUSES } from "../../src/causes";
import { CAUSE_STYLES, PALE, causeColor } from "../../src/charts/colors";

type Rgb = [number, number, number];

const STYLE = readFileSync("src/style.css", "utf8");
const LIGHT = STYLE.indexOf(":root {");
const DARK = STYLE.indexOf(':root[data-theme="dark"] {');

/** The custom properties of a theme; dark mode overrides some of light mode's. */
function readVariables(start: number): Map<string, string> {
  const block = STYLE.slice(start, STYLE.indexOf("}", start));
  return new Map([...block.matchAll(/--([\w-]+): (#[0-9a-f]{6});/g)].map(([, name = "", value = ""]) => [name, value]));
}
const THEMES = { light: readVariables(LIGHT), dark: new Map([...readVariables(LIGHT), ...readVariables(DARK)]) };
// Programs on the CPU have operators in place of device compute, in the same color.
const causesOf = (theme: "light" | "dark"): [string, string][] =>
  Object.entries(CAUSES).flatMap(([cause, colors]) => (cause === "host-compute" ? [] : [[cause, colors[theme]]]));

/** WCAG 2.2, "relative luminance": linear sRGB and its weighted sum. */
const linear = (hex: string): Rgb =>
  [1, 3, 5].map((at) => {
    const value = Number.parseInt(hex.slice(at, at + 2), 16) / 255;
    return value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  }) as Rgb;
const luminance = ([r, g, b]: Rgb): number => 0.2126 * r + 0.7152 * g + 0.0722 * b;
function contrast(a: string, b: string): number {
  const [low = 0, high = 0] = [luminance(linear(a)), luminance(linear(b))].sort((x, y) => x - y);
  return (high + 0.05) / (low + 0.05);
}

const times = (matrix: number[][], [x, y, z]: Rgb): Rgb =>
  matrix.map(([a = 0, b = 0, c = 0]) => a * x + b * y + c * z) as Rgb;
// Björn Ottosson, "A perceptual color space for image processing" (2020).
const TO_LMS = [
  [0.4122214708, 0.5363325363, 0.0514459929],
  [0.2119034982, 0.6806995451, 0.1073969566],
  [0.0883024619, 0.2817188376, 0.6299787005],
];
const TO_LAB = [
  [0.2104542553, 0.793617785, -0.0040720468],
  [1.9779984951, -2.428592205, 0.4505937099],
  [0.0259040371, 0.7827717662, -0.808675766],
];
const oklab = (color: Rgb): Rgb =>
  times(TO_LAB, times(TO_LMS, color.map((part) => Math.min(Math.max(part, 0), 1)) as Rgb).map(Math.cbrt) as Rgb);

// Machado, Oliveira and Fernandes, "A physiologically-based model for simulation of color vision
// deficiency" (2009), at full severity, with the least distance between any two colors. Distances
// are in OKLab, times 100: below 2, colors look the same side by side. Eighteen colors are too
// many for more, so large segments have labels as well.
const EYES: [name: string, matrix: number[][], least: number][] = [
  ["usual", [[1, 0, 0], [0, 1, 0], [0, 0, 1]], 7],
  ["protanopia", [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]], 5],
  ["deuteranopia", [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]], 5],
  ["tritanopia", [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]], 3.4],
];

for (const [name, theme] of Object.entries(THEMES)) {
  const color = (variable: string): string => theme.get(variable) ?? assert.fail(variable);
  const causes = causesOf(name as keyof typeof THEMES);

  test(`causes can be told apart in ${name} mode`, () => {
    assert.equal(new Set(causes.map(([, hex]) => hex)).size, causes.length);
    for (const [eyes, matrix, least] of EYES) {
      const seen = causes.map(([cause, hex]) => ({ cause, lab: oklab(times(matrix, linear(hex))) }));
      for (const [index, a] of seen.entries()) {
        for (const b of seen.slice(index + 1)) {
          const distance = 100 * Math.hypot(...a.lab.map((part, at) => part - (b.lab[at] ?? 0)));
          assert.ok(distance >= least, `${a.cause} and ${b.cause} with ${eyes} eyes: ${distance.toFixed(1)}`);
        }
      }
    }
  });

  test(`causes and their labels have contrast in ${name} mode`, () => {
    for (const [cause, hex] of causes) {
      // WCAG 2.2, success criteria 1.4.11 (graphical objects) and 1.4.3 (text).
      assert.ok(contrast(hex, color("surface")) >= 3, `${cause} on the surface`);
      const text = color(PALE.has(cause) ? "on-pale-mark" : "on-mark");
      assert.ok(contrast(hex, text) >= 4.5, `text on ${cause}: ${contrast(hex, text).toFixed(2)}`);
    }
  });

  test(`text has contrast in ${name} mode`, () => {
    for (const ground of ["page", "surface", "sunken", "hover", "chosen"]) {
      for (const text of ["text", "text-muted", "accent", "high", "medium", "low", "good"]) {
        const found = contrast(color(text), color(ground));
        assert.ok(found >= 4.5, `${text} on ${ground}: ${found.toFixed(2)}`);
      }
    }
  });
}

test("each cause has its color in the style of both themes", () => {
  assert.equal(causeColor("input"), "var(--cause-input)");
  assert.equal(causeColor("unheard-of"), "var(--cause-unexplained)");
  const [light = "", dark = ""] = CAUSE_STYLES.split(':root[data-theme="dark"]');
  for (const [cause, colors] of Object.entries(CAUSES)) {
    assert.match(light, new RegExp(`--cause-${cause}: ${colors.light};`));
    assert.match(dark, new RegExp(`--cause-${cause}: ${colors.dark};`));
  }
});

test("the formula of contrast gives the known values", () => {
  assert.equal(contrast("#000000", "#ffffff"), 21);
  // The lightest gray that passes on white, in many guides: #767676 with 4.54.
  assert.equal(contrast("#767676", "#ffffff").toFixed(2), "4.54");
});
