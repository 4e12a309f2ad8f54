// Finds events by name in the whole recording, and steps through them.
import type { JSX, RefObject } from "preact";
import { useEffect, useState } from "preact/hooks";
import { formatDuration, formatPlural } from "../format";
import type { EventInfo, FoundEvents } from "../state/answers";
import { searchEvents } from "../state/api";
import { isExported } from "../state/exported";
import { LeftIcon, RightIcon } from "../widgets/icons";

interface Props {
  captureId: string;
  text: string;
  setText(text: string): void;
  field: RefObject<HTMLInputElement | null>;
  show(event: EventInfo): void;
}

/** Wait this long for the next letter. */
const TYPING_MS = 250;

export function Search({ captureId, text, setText, field, show }: Props): JSX.Element {
  const [found, setFound] = useState<FoundEvents | null>(null);
  const [place, setPlace] = useState(-1);
  const wanted = text.trim();
  useEffect(() => {
    setPlace(-1);
    setFound(null);
    if (wanted === "" || isExported) return undefined;
    const controller = new AbortController();
    const timer = setTimeout(() => {
      searchEvents(captureId, wanted, controller.signal).then(setFound, () => undefined);
    }, TYPING_MS);
    return () => {
      clearTimeout(timer);
      controller.abort();
    };
  }, [captureId, wanted]);
  const events = found?.events ?? [];
  const step = (by: number): void => {
    const next = place < 0 ? (by > 0 ? 0 : events.length - 1) : (place + by + events.length) % events.length;
    const event = events[next];
    setPlace(next);
    if (event) show(event);
  };
  return (
    <div class="timeline-search">
      <input
        ref={field}
        type="search"
        aria-label="Find events by name"
        placeholder="Find events by name"
        maxLength={200}
        value={text}
        onInput={({ currentTarget }) => setText(currentTarget.value)}
        onKeyDown={(event) => {
          if (event.key === "Enter" && events.length > 0) step(event.shiftKey ? -1 : 1);
        }}
      />
      <span class="muted" role="status">
        {found &&
          (found.count === 0
            ? "No events"
            : `${formatPlural(found.count, "event")}, ${formatDuration(found.total_ns)}${
                found.count > events.length ? `; the longest ${events.length} by time` : ""
              }${place >= 0 ? `; ${place + 1} of ${events.length}` : ""}`)}
      </span>
      {events.length > 0 && (
        <span class="button-row">
          <button type="button" class="tool" aria-label="Previous match" title="Previous match" onClick={() => step(-1)}>
            <LeftIcon />
          </button>
          <button type="button" class="tool" aria-label="Next match" title="Next match" onClick={() => step(1)}>
            <RightIcon />
          </button>
        </span>
      )}
    </div>
  );
}
