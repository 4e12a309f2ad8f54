// TensorBoard's page around the tab: its theme, URL and reload button. The browser may refuse
// access to it (another origin, a sandbox, no TensorBoard), so everything has a fallback and
// nothing throws.

import { isExported } from "./exported";

export type Theme = "light" | "dark";

const PREFIX = "p.perf_advisor.";

/** TensorBoard's window if the browser lets us access it, else our own. */
function hostWindow(): Window {
  // Around an exported page is a notebook, whose URL is its own.
  if (isExported) return window;
  try {
    void window.parent.location.href;
    return window.parent;
  } catch {
    return window;
  }
}

function parentBody(): HTMLElement | null {
  const host = hostWindow();
  return host === window ? null : host.document.body;
}

export function readTheme(): Theme {
  const body = parentBody();
  if (body) return body.classList.contains("dark-mode") ? "dark" : "light";
  return matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
}

export function followTheme(apply: (theme: Theme) => void): void {
  const update = (): void => apply(readTheme());
  update();
  const body = parentBody();
  if (body) {
    new MutationObserver(update).observe(body, { attributes: true, attributeFilter: ["class"] });
  } else {
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", update);
  }
}

/** What is not in the URL, or not yet: the browser may refuse. The tab works without links. */
let unwrittenHash: string | null = null;
/** Browsers refuse more than a few changes per second, as from dragging. */
const REST_MS = 300;
let isResting = false;
let isDue = false;

const currentHash = (): string => unwrittenHash ?? hostWindow().location.hash;

/** Our values in the URL: `#perf_advisor&p.perf_advisor.capture=…`. */
export function readLink(hash: string = currentHash()): Record<string, string> {
  const values: Record<string, string> = {};
  for (const part of hash.replace(/^#/, "").split("&")) {
    const [key = "", value = ""] = part.split("=", 2);
    if (!key.startsWith(PREFIX)) continue;
    try {
      values[key.slice(PREFIX.length)] = decodeURIComponent(value);
    } catch {
      // Ignore a link that was cut off in the middle of an escape.
    }
  }
  return values;
}

/** The hash with some of our values changed; empty ones are removed. */
export function withLinkValues(hash: string, values: Record<string, string>): string {
  const isOther = (part: string): boolean =>
    part !== "" && !Object.keys(values).some((key) => part.startsWith(`${PREFIX}${key}=`));
  const parts = hash.replace(/^#/, "").split("&").filter(isOther);
  for (const [key, value] of Object.entries(values)) {
    if (value) parts.push(`${PREFIX}${key}=${encodeURIComponent(value)}`);
  }
  return `#${parts.join("&")}`;
}

/** The address of the whole page with some of our values changed. */
export function addressWith(values: Record<string, string>): string {
  const [page] = hostWindow().location.href.split("#", 1);
  return `${page}${withLinkValues(currentHash(), values)}`;
}

/** Changes our values in the URL: as a new place that Back leaves, or in place of the current one. */
export function writeLink(values: Record<string, string>, isNewPlace: boolean): void {
  const hash = withLinkValues(currentHash(), values);
  if (hash === (currentHash() || "#")) return;
  if (isNewPlace) {
    if (unwrittenHash !== null) writeHash(unwrittenHash, false);
    writeHash(hash, true);
    return;
  }
  unwrittenHash = hash;
  isDue = true;
  if (!isResting) writeDueHash();
}

function writeDueHash(): void {
  isResting = false;
  if (!isDue || unwrittenHash === null) return;
  writeHash(unwrittenHash, false);
  isResting = true;
  setTimeout(writeDueHash, REST_MS);
}

function writeHash(hash: string, isNewPlace: boolean): void {
  const { history } = hostWindow();
  isDue = false;
  try {
    // Not by `location.hash`: a sandboxed frame may not navigate its parent.
    if (isNewPlace) history.pushState(history.state, "", hash);
    else history.replaceState(history.state, "", hash);
    unwrittenHash = null;
  } catch {
    unwrittenHash = hash;
  }
}

export function followLink(apply: () => void): void {
  hostWindow().addEventListener("hashchange", () => {
    unwrittenHash = null;
    isDue = false;
    apply();
  });
}

/** The query of TensorBoard's URL, which links out of the tab keep. */
export const readSearch = (): string => hostWindow().location.search;

/** Calls `act` when the tab is visible: at once, or when it becomes visible again. */
export function whenShown(act: () => void, frame: Window = window): void {
  // TensorBoard hides the frame of a tab by setting its height to 0.
  if (frame.innerHeight > 0) act();
  else frame.addEventListener("resize", () => whenShown(act, frame), { once: true });
}

/**
 * Calls `reload` when TensorBoard reloads, by button or timer. It waits until the tab is visible,
 * because each reload lists the logdir, which can be a bucket. TensorBoard sends JSON strings over
 * a message port (its experimental plugin library) and expects a reply to each.
 */
export function followReload(reload: () => void): void {
  if (window.parent === window) return;
  let isDue = false;
  const reloadOnce = () => {
    isDue = false;
    reload();
  };
  const channel = new MessageChannel();
  channel.port1.onmessage = ({ data }) => {
    try {
      const { type, id, isReply } = JSON.parse(String(data));
      if (isReply) return;
      channel.port1.postMessage(
        JSON.stringify({ type, id, payload: null, error: null, isReply: true }),
      );
      if (type === "experimental.DataReloaded" && !isDue) {
        isDue = true;
        whenShown(reloadOnce);
      }
    } catch {
      // Not a message from TensorBoard.
    }
  };
  window.parent.postMessage("experimental.bootstrap", "*", [channel.port2]);
}

export async function copyText(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // Pages served over plain http from another machine have no clipboard API.
    return copyBySelection(text);
  }
}

function copyBySelection(text: string): boolean {
  const focused = document.activeElement;
  const area = document.createElement("textarea");
  area.value = text;
  area.setAttribute("readonly", "");
  area.className = "visually-hidden";
  document.body.append(area);
  area.select();
  let isCopied = false;
  try {
    isCopied = document.execCommand("copy");
  } catch {
    // The caller reports the failure.
  }
  area.remove();
  if (focused instanceof HTMLElement) focused.focus();
  return isCopied;
}
