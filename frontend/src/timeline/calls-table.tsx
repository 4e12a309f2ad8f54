// What a timeline shows, as a table: the calls in view by name, those that take the most time first.
import type { JSX } from "preact";
import { useMemo } from "preact/hooks";
import { formatPlural } from "../format";
import { type Column, SortableTable } from "../widgets/sortable-table";
import { type Calls, type Picture, callsIn } from "./picture";
import type { Range } from "./range";

interface Props {
  picture: Picture;
  range: Range;
  pick: number;
  choose(event: number): void;
}

/** Rows beyond these take next to no time. */
const MAX_ROWS = 500;

export function CallsTable({ picture, range, pick, choose }: Props): JSX.Element {
  const { calls, hidden } = useMemo(() => callsIn(picture, range), [picture, range.fromNs, range.toNs]);
  const columns: Column<Calls>[] = useMemo(
    () => [
      { key: "name", label: "Event", unit: null, value: ({ name }) => name, isLongName: true, open: ({ event }) => choose(event) },
      { key: "self", label: "Own time", unit: "ns", value: ({ selfNs }) => selfNs },
      { key: "total", label: "Time", unit: "ns", value: ({ totalNs }) => totalNs },
      { key: "count", label: "Count", unit: "count", value: ({ count }) => count },
      { key: "kind", label: "Kind", unit: null, value: ({ kind }) => kind.replaceAll("_", " ") },
      { key: "track", label: "Track", unit: null, value: ({ track }) => track },
    ],
    [],
  );
  const rows = calls.slice(0, MAX_ROWS);
  return (
    <div class="timeline-table">
      <SortableTable
        caption="Events in view"
        columns={columns}
        rows={rows}
        sort={{ key: "self", isDescending: true }}
        filterLabel="Find an event in view"
        chosen={rows.find(({ event }) => event === pick)}
        truncated={calls.length - rows.length}
      />
      {hidden > 0 && <p class="table-note muted">{formatPlural(hidden, "short event")} that share a box at this zoom are not included.</p>}
    </div>
  );
}
