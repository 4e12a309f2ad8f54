// What surrounds the tab: TensorBoard's page, its theme, its address, its reload button.
// Every look outside can be refused (another origin, a sandbox, no TensorBoard at all), so
// each has a fallback and none may throw.

export type Theme = "light" | "dark";

const PREFIX = "p.perf_advisor.";

/** TensorBoard's window where it may be looked into, else our own. */
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

/** Our part of the address: `#perf_advisor&p.perf_advisor.capture=…`. */
export function readLink(hash: string = hostWindow().location.hash): Record<string, string> {
  const values: Record<string, string> = {};
  for (const part of hash.replace(/^#/, "").split("&")) {
    const [key = "", value = ""] = part.split("=", 2);
    if (!key.startsWith(PREFIX)) continue;
    try {
      values[key.slice(PREFIX.length)] = decodeURIComponent(value);
    } catch {
      // A link cut off in the middle of an escape names nothing.
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
    if (storage?.setString) storage.setString(PREFIX + key, value);
    else host.history.replaceState(host.history.state, "", withLinkValue(host.location.hash, key, value));
  } catch {
    // Without a link the tab still works.
  }
}

export function followLink(apply: () => void): void {
  hostWindow().addEventListener("hashchange", apply);
}

/** Query of TensorBoard's page, to be kept in links out of the tab. */
export const readSearch = (): string => hostWindow().location.search;

/** Calls back when the tab is on the screen: at once, or when it returns there. */
export function whenShown(act: () => void, frame: Window = window): void {
  // TensorBoard hides the frames of other tabs by taking their height.
  if (frame.innerHeight > 0) act();
  else frame.addEventListener("resize", () => whenShown(act, frame), { once: true });
}

/**
 * Calls back when TensorBoard's reload button is pressed, or its timer has run out; then only
 * while the tab is shown, for a bucket is listed each time. TensorBoard speaks JSON strings over
 * a message port (its experimental plugin library); each message wants a reply.
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
      // Not for us.
    }
  };
  window.parent.postMessage("experimental.bootstrap", "*", [channel.port2]);
}

export async function copyText(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return copyBySelection(text); // plain http on another machine has no clipboard
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
    // Not allowed here: the button says so.
  }
  area.remove();
  if (focused instanceof HTMLElement) focused.focus();
  return isCopied;
}
