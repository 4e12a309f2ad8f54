// Hands a trace to ui.perfetto.dev, as its documentation describes: open it, send PING until it
// answers PONG, then post the file. The trace goes from tab to tab; nothing is uploaded.
// https://perfetto.dev/docs/visualization/deep-linking-to-perfetto-ui
import { ApiError } from "./answers";
import { fetchMade } from "./api";

const PERFETTO = "https://ui.perfetto.dev";
const PING_EVERY_MS = 50;
/** A slow connection needs some seconds to load the page. */
const GIVE_UP_MS = 30_000;

/**
 * Opens a file of the plugin in Perfetto. Call it from a click: otherwise, the browser does not
 * allow a new tab.
 */
export async function openInPerfetto(url: string, title: string): Promise<void> {
  const tab = window.open(PERFETTO);
  if (!tab) {
    throw new ApiError("The browser blocked the new tab", "", "Allow pop-ups for TensorBoard, or download the trace.");
  }
  const [response] = await Promise.all([fetchMade(url), answering(tab)]);
  const buffer = await response.arrayBuffer();
  tab.postMessage({ perfetto: { buffer, title } }, PERFETTO, [buffer]);
}

function answering(tab: Window): Promise<void> {
  return new Promise((resolve, reject) => {
    const startedMs = performance.now();
    const stop = (): void => {
      clearInterval(timer);
      removeEventListener("message", onMessage);
    };
    const onMessage = ({ source, origin, data }: MessageEvent): void => {
      if (source !== tab || origin !== PERFETTO || data !== "PONG") return;
      stop();
      resolve();
    };
    const timer = setInterval(() => {
      if (tab.closed || performance.now() - startedMs > GIVE_UP_MS) {
        stop();
        reject(new ApiError("Perfetto did not open", "", "Download the trace, and open it there."));
      } else tab.postMessage("PING", PERFETTO);
    }, PING_EVERY_MS);
    addEventListener("message", onMessage);
  });
}
