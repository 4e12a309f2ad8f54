// Finds events by name in the whole recording, lists them with sums, and steps through them.
import type { JSX, RefObject } from "preact";
import { useEffect, useState } from "preact/hooks";
import { formatDuration, formatPlural } from "../format";
import type { EventInfo, FoundEvents, FoundName } from "../state/answers";
import { searchEvents } from "../state/api";
import { isExported } from "../state/exported";
import { useFlag } from "../state/linked";
import { LeftIcon, RightIcon } from "../widgets/icons";
import { type Column, SortableTable } from "../widgets/sortable-table";

interface Props {
  text: string;
  setText(text: string): void;
  found: FoundEvents | null;
  field: RefObject<HTMLInputElement | null>;
  /** The event that is chosen; -1 for none. */
  pick: number;
  show(event: EventInfo): void;
}

/** Wait this long for the next letter. */
const TYPING_MS = 250;

/** The events whose names contain a text; null until they are there. */
export function useFound(captureId: string, text: string): FoundEvents | null {
  const [found, setFound] = useState<FoundEvents | null>(null);
  const wanted = text.trim();
  useEffect(() => {
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
  return found;
}

export function Search({ text, setText, found, field, pick, show }: Props): JSX.Element {
  const [isListed, setListed] = useFlag("list");
  const events = found?.events ?? [];
  // From the event that is chosen, also one that was chosen otherwise.
  const place = events.findIndex(({ event }) => event === pick);
  const step = (by: number): void => {
    const next = place < 0 ? (by > 0 ? 0 : events.length - 1) : (place + by + events.length) % events.length;
    const event = events[next];
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
          <button type="button" aria-pressed={isListed} onClick={() => setListed(!isListed)}>
            List
          </button>
        </span>
      )}
    </div>
  );
}

/** The list of what was found, if it is open. */
export function Hits({ found, pick, show }: Pick<Props, "found" | "pick" | "show">): JSX.Element | null {
  const [isListed] = useFlag("list");
  if (!isListed || !found || found.count === 0) return null;
  const { events, names } = found;
  const nameColumns: Column<FoundName>[] = [
    { key: "name", label: "Name", unit: null, value: ({ name }) => name, isLongName: true, open: ({ longest }) => show(longest) },
    { key: "time", label: "Time", unit: "ns", value: ({ total_ns: ns }) => ns },
    { key: "count", label: "Count", unit: "count", value: ({ count }) => count },
    { key: "longest", label: "Longest", unit: "ns", value: ({ longest }) => longest.duration_ns },
  ];
  const columns: Column<EventInfo>[] = [
    { key: "name", label: "Event", unit: null, value: ({ name }) => name, isLongName: true, open: show },
    { key: "start", label: "Start", unit: "ns", value: ({ start_ns: ns }) => ns },
    { key: "time", label: "Duration", unit: "ns", value: ({ duration_ns: ns }) => ns },
    { key: "line", label: "Line", unit: null, value: ({ line }) => line },
  ];
  return (
    <div class="timeline-hits">
      {names.length > 1 && <SortableTable caption="Names found" columns={nameColumns} rows={names} />}
      <SortableTable
        caption="Events found"
        columns={columns}
        rows={events}
        chosen={events.find(({ event }) => event === pick)}
        truncated={found.count - events.length}
      />
    </div>
  );
}
