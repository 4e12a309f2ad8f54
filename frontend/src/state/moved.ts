// Addresses of earlier versions, whose pages are parts of others now.
import type { LinkValues } from "./link";

const MOVED: Readonly<Record<string, LinkValues>> = {
  kernels: { view: "device" },
  operators: { view: "host", as: "table" },
  calls: { view: "host", as: "tree" },
  parallelism: { view: "ranks" },
  steps: { view: "time" },
  history: { view: "time" },
  training: { view: "time" },
  rules: { view: "about" },
  files: { view: "about" },
};

/** What to write to an address so that it leads to the new place; null if it is not an old one. */
export function movedTo(values: LinkValues): LinkValues | null {
  const place = MOVED[values.view ?? ""];
  if (place === undefined) return null;
  return values["of.as"] === "flames" ? { ...place, as: "flames", "of.as": "" } : place;
}
