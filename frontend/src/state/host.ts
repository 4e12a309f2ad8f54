// TensorBoard's page around the tab: its theme, URL and reload button. The browser may refuse
// access to it (another origin, a sandbox, no TensorBoard), so everything has a fallback and
// nothing throws.

export type Theme = "light" | "dark";

const PREFIX = "p.perf_advisor.";

/** TensorBoard's window if the browser lets us access it, else our own. */
function hostWindow(): Window {
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

/** Our values in the URL: `#perf_advisor&p.perf_advisor.capture=…`. */
export function readLink(hash: string = hostWindow().location.hash): Record<string, string> {
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

/** The hash with one of our values set, or removed when empty. */
export function withLinkValue(hash: string, key: string, value: string): string {
  const parts = hash
    .replace(/^#/, "")
    .split("&")
    .filter((part) => part !== "" && !part.startsWith(`${PREFIX}${key}=`));
  if (value) parts.push(`${PREFIX}${key}=${encodeURIComponent(value)}`);
  return `#${parts.join("&")}`;
}

interface TensorBoardWindow extends Window {
  tensorboard?: { tf_storage?: { setString?(key: string, value: string): void } };
}

export function writeLink(key: string, value: string): void {
  const host = hostWindow() as TensorBoardWindow;
  if ((readLink(host.location.hash)[key] ?? "") === value) return;
  try {
    const storage = host.tensorboard?.tf_storage;
    // TensorBoard's storage would leave `key=` behind.
    if (storage?.setString && value) storage.setString(PREFIX + key, value);
    else host.history.replaceState(host.history.state, "", withLinkValue(host.location.hash, key, value));
  } catch {
    // The tab works without links.
  }
}

export function followLink(apply: () => void): void {
  hostWindow().addEventListener("hashchange", apply);
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
