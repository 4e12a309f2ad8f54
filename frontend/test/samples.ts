// Sample reports of the dev server.
import { readFileSync } from "node:fs";
import type { Report } from "../src/report";

// Links are made from the address of the page.
Object.assign(globalThis, { window: { location: new URL("http://host/#perf_advisor") } });

export const readSample = (name: string): Report =>
  JSON.parse(readFileSync(`dev/samples/${name}.report.json`, "utf8"));

/** The text of rendered HTML. */
export const textOf = (html: string): string => html.replace(/<[^>]*>/g, " ").replace(/\s+/g, " ");
