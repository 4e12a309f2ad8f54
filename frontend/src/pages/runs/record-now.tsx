// Asks the programs that run in the log folder to record their next steps.
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { formatPlural } from "../../format";
import type { ApiError } from "../../state/answers";
import { recordNow } from "../../state/api";
import { captures, loadCaptures } from "../../state/store";

const LOOK_EVERY_MS = 500;
/** A program that has just recorded waits a minute; then it makes its steps. */
const LONGEST_MS = 90_000;

const known = (): number => (captures.value.state === "ready" ? captures.value.value.captures.length : 0);

/** Lists the captures again until there is another one. */
function awaitCapture(before: number, untilMs: number): void {
  if (known() > before || Date.now() > untilMs) return;
  setTimeout(() => void loadCaptures().then(() => awaitCapture(before, untilMs)), LOOK_EVERY_MS);
}

export function RecordNow({ programs }: { programs: number }): JSX.Element | null {
  const [said, say] = useState("");
  if (programs === 0) return null;
  const ask = (): void => {
    recordNow().then(
      (asked) => {
        say(`${formatPlural(asked, "program")} asked. The recording appears here, once a minute at most.`);
        awaitCapture(known(), Date.now() + LONGEST_MS);
      },
      (error: ApiError) => say(`${error.message} ${error.hint}`),
    );
  };
  return (
    <p class="button-row">
      <button type="button" onClick={ask}>
        Record now
      </button>
      <span class="muted" role="status">
        {said || `${formatPlural(programs, "program")} can record the next steps`}
      </span>
    </p>
  );
}
