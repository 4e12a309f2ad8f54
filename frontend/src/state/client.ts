// What this page calls itself, so that the server can tell who waits for an analysis.
const KEY = "perf_advisor.client";

function makeName(): string {
  return Array.from(crypto.getRandomValues(new Uint8Array(12)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** The name stays over a reload, unless the browser refuses storage, as in a sandboxed frame. */
function keptName(): string {
  try {
    const name = sessionStorage.getItem(KEY) ?? makeName();
    sessionStorage.setItem(KEY, name);
    return name;
  } catch {
    return makeName();
  }
}

let name = "";

export const clientName = (): string => (name ||= keptName());
