// The table of runs: only the rows on screen are rendered, of thousands.
import type { JSX } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { type CellValue, formatDuration, formatPlural } from "../../format";
import { noteOnScreen } from "../../state/analyses";
import type { Capture, Mark } from "../../state/answers";
import { sessionName } from "../../text";
import { captureLink } from "../../state/store";
import { Cell } from "../../widgets/cell";
import { ChevronIcon } from "../../widgets/icons";
import { LongName, Name } from "../../widgets/name";
import { PageLink } from "../../widgets/page-link";
import { ScrollBox } from "../../widgets/scroll-box";
import { type Column, type Sort, SortHeads } from "../../widgets/sortable-table";
import { useWindow } from "../../widgets/window-rows";
import { isRecordedAgain } from "../../state/capture-name";
import { type Group, stepTimes } from "./groups";
import { SparkLine } from "./spark-line";

export type TableLine =
  | { kind: "capture"; capture: Capture; isInGroup: boolean }
  | { kind: "group"; group: Group; isOpen: boolean; toggle(): void };

/** As in the style sheet: with rows of one height, the place of each is known without rendering it. */
const ROW_PX = 47;
/** While rows pass by, wait this long for the user to stop. */
const SETTLED_MS = 300;

interface Props {
  columns: Column<Capture>[];
  lines: TableLine[];
  sort: Sort | null;
  sortBy(key: string): void;
  marks: Readonly<Record<string, Mark>>;
}

export function RunsTable({ columns, lines, sort, sortBy, marks }: Props): JSX.Element {
  const body = useRef<HTMLTableSectionElement>(null);
  const { rendered, onScreen } = useWindow(body, lines.length, ROW_PX);
  const shown = lines
    .slice(onScreen.from, onScreen.to)
    .flatMap((line) => (line.kind === "capture" ? [line.capture.id] : []));
  useEffect(() => {
    const timer = setTimeout(() => noteOnScreen(shown), SETTLED_MS);
    return () => clearTimeout(timer);
  }, [shown.join()]);
  return (
    <ScrollBox role="group" label="Runs">
      <table aria-rowcount={lines.length + 1}>
        <thead>
          <tr aria-rowindex={1}>
            <SortHeads columns={columns} sort={sort} sortBy={({ key }) => sortBy(key)} />
          </tr>
        </thead>
        <tbody ref={body} class="fixed-rows">
          <Gap rows={rendered.from} columns={columns.length} />
          {lines.slice(rendered.from, rendered.to).map((line, place) => {
            const number = rendered.from + place + 2;
            return line.kind === "group" ? (
              <GroupRow key={`group ${line.group.name}`} line={line} columns={columns.length} number={number} marks={marks} />
            ) : (
              <CaptureRow key={line.capture.id} line={line} columns={columns} number={number} />
            );
          })}
          <Gap rows={lines.length - rendered.to} columns={columns.length} />
        </tbody>
      </table>
      {lines.length === 0 && <p class="truncated">No matching rows.</p>}
    </ScrollBox>
  );
}

/** The room of rows that are not rendered. */
function Gap({ rows, columns }: { rows: number; columns: number }): JSX.Element | null {
  if (rows <= 0) return null;
  return (
    <tr class="gap" aria-hidden="true">
      <td colSpan={columns} style={{ height: `${rows * ROW_PX}px` }} />
    </tr>
  );
}

function CaptureRow(props: { line: TableLine & { kind: "capture" }; columns: Column<Capture>[]; number: number }): JSX.Element {
  const { line, columns, number } = props;
  return (
    <tr aria-rowindex={number} class={line.isInGroup ? "in-group" : ""}>
      {columns.map(({ key, unit, value, render }) => (
        <td key={key} class={unit === null ? "text" : "number"}>
          {render ? render(line.capture) : <PlainCell value={value(line.capture)} unit={unit} />}
        </td>
      ))}
    </tr>
  );
}

/** Text is cut after two lines, as all rows have the same height. */
function PlainCell({ value, unit }: { value: CellValue; unit: string | null }): JSX.Element {
  return typeof value === "string" ? <LongName name={value} /> : <Cell value={value} unit={unit ?? ""} />;
}

interface GroupProps {
  line: TableLine & { kind: "group" };
  columns: number;
  number: number;
  marks: Readonly<Record<string, Mark>>;
}

/** A group: how its step time went, its best and its newest capture. */
function GroupRow({ line: { group, isOpen, toggle }, columns, number, marks }: GroupProps): JSX.Element {
  const times = stepTimes(group);
  const best = times.reduce<number | null>((least, { ns }) => (least === null ? ns : Math.min(least, ns)), null);
  const newest = times.at(-1)?.ns ?? null;
  const slower = group.captures.filter(({ id }) => marks[id]?.verdict === "slower").length;
  const [latest] = group.captures;
  return (
    <tr aria-rowindex={number} class="group-row">
      <th scope="colgroup" colSpan={columns}>
        <div class="group-line">
          <button type="button" class="group-name" aria-expanded={isOpen} onClick={toggle}>
            <ChevronIcon />
            <Name of={group.name} />
          </button>
          <span class="muted">{formatPlural(group.captures.length, "capture")}</span>
          <SparkLine times={times.map(({ ns }) => ns)} />
          {newest !== null && <span>newest {formatDuration(newest)}</span>}
          {best !== null && times.length > 1 && <span class="muted">best {formatDuration(best)}</span>}
          {slower > 0 && <span class="badge mark verdict-slower">{formatPlural(slower, "slower capture")}</span>}
          {latest && isRecordedAgain(latest) && (
            <PageLink to={{ ...captureLink(latest.id), view: "time" }}>Over time</PageLink>
          )}
          {latest && latest.recorded && <span class="muted when group-when">{sessionName(latest.recorded).slice(0, 16)}</span>}
        </div>
      </th>
    </tr>
  );
}
