// A timeline of all tracks: the causes above, the events below, and what is chosen in words.
import type { JSX } from "preact";
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import type { CriticalPath, EventInfo, Track } from "../state/answers";
import { BASE, excerptUrl, fetchPath } from "../state/api";
import { chosenCause } from "../state/chosen-cause";
import { isExported } from "../state/exported";
import { useFlag, useLinked, useNumber } from "../state/linked";
import { profileTarget, traceViewerLink } from "../state/profile-tab";
import { report, selectedCapture } from "../state/store";
import { findingAt } from "../finding-ids";
import { formatDuration, formatPlural, formatShare } from "../format";
import { LeftIcon, LinkIcon, MinusIcon, PlusIcon, RightIcon } from "../widgets/icons";
import { type Arrow, arrowsOf } from "./arrows";
import { CallsTable } from "./calls-table";
import { ChosenEvent } from "./chosen-event";
import { ExcerptLink } from "./excerpt-link";
import { HEAD_PX } from "./drawing";
import { type Picture, boxOfEvent, boxOfFocus } from "./picture";
import { ranksOf } from "./event-facts";
import { layOut, trackName } from "./layout";
import { usePictures } from "./pictures";
import { type Hit, Plane, type Pointed } from "./plane";
import { type Focus, type Range, formatRange, isSameRange, parseRange, rangeAround, showing } from "./range";
import { RangeSumsPanel } from "./range-sums";
import { Hits, Search, useFound } from "./search";
import { Tip } from "./tip";

/** The part of the timeline that the focus fills at first: the rest shows what it waits for. */
const INITIAL_FILL = 0.5;
const ZOOM = 3;
/** How far a click moves the timeline, as a part of its length. */
const STRIDE = 0.5;
const HEIGHT_PX = 360;

interface Props {
  captureId: string;
  /** The findings whose time is marked, by their places in the analysis. */
  findings?: readonly number[];
  worker: number;
  /** What the timeline is about; without it, the step in which the only finding costs time, or a typical one. */
  focus?: Focus;
  /** The part of the timeline that the focus fills at first. */
  fill?: number;
  /** What the timeline is around, such as "the event". */
  around?: string;
  /** The rows of the evidence before and after the focused event, in order of time. */
  neighbors?: [previous: number | undefined, next: number | undefined];
  select?(row: number): void;
  /** From the focused event to the step. */
  goBack?(): void;
  /** Of the picture, at most. */
  heightPx?: number;
}

const NO_FINDINGS: readonly number[] = [];
const NO_TRACKS: Track[] = [];
const NO_ARROWS: Arrow[] = [];
const KEYS =
  "W and S zoom, A and D move, arrow keys choose events, F zooms to the chosen one, M sums up its time or what is in view, slash searches, Home goes back";

export function Timeline(props: Props): JSX.Element {
  const { captureId, findings = NO_FINDINGS, worker, focus, fill = INITIAL_FILL, around = "the event", select } = props;
  const [zoom, setZoom] = useLinked("zoom");
  const [pick, setPick] = useNumber("pick", -1);
  const [find, setFind] = useLinked("find");
  const [closedText, setClosed] = useLinked("closed");
  const [isTable, setTable] = useFlag("table");
  const [selectedText, setSelected] = useLinked("range");
  const [hasPath, setHasPath] = useFlag("path");
  const [scrolledText, setScrolled] = useLinked("top");
  const initial = useMemo(() => focus && rangeAround(focus, fill), [focus?.startNs, focus?.durationNs, fill]);
  // What the hand did last, until the address has it.
  const [moved, setMoved] = useState<{ range: Range; since: string } | null>(null);
  const asked = useMemo(() => parseRange(zoom), [zoom]) ?? initial ?? null;
  const live = moved?.since === zoom ? moved.range : asked;
  const pictures = usePictures(captureId, worker, live, pick, findings.length === 1 ? findings[0] : undefined);
  const { fine, whole, chosen } = pictures;
  const range = live ?? chosen;
  const tracks = fine?.answer.tracks;
  const closed = useMemo(() => new Set(closedText.split("-").filter(Boolean).map(Number)), [closedText]);
  const matches = useMatches(find);
  const found = useFound(captureId, find);
  const [pointed, setPointed] = useState<Pointed | null>(null);
  const place = useRef<HTMLDivElement>(null);
  const canvas = useRef<HTMLCanvasElement>(null);
  const map = useRef<HTMLCanvasElement>(null);
  const field = useRef<HTMLInputElement>(null);
  const plane = useRef<Plane | null>(null);
  const home = (): void => (setMoved(null), setZoom(""));
  const selected = useMemo(() => parseRange(selectedText), [selectedText]);
  const sumUp = (next: Range | null): void => setSelected(next ? formatRange(next) : "");
  const toggle = (track: number): void => {
    const next = new Set(closed);
    if (!next.delete(track)) next.add(track);
    setClosed([...next].sort((a, b) => a - b).join("-"));
  };
  const start = initial ?? chosen;
  const choose = (hit: Hit | null): void => setPick(hit ? (hit.picture.answer.boxes.event[hit.box] ?? -1) : -1);
  // The plane outlives renderings, and calls the latest of these.
  const shown = useMemo(() => [whole, fine].filter((picture): picture is Picture => picture !== null), [whole, fine]);
  const hit = useMemo(() => hitOf(shown, pick), [shown, pick]);
  const mark = (): void => {
    const marked = plane.current?.pickedTime() ?? range;
    if (marked && marked.fromNs < marked.toNs) sumUp(marked);
  };
  const latest = useRef({ home, toggle, choose, zoom, setZoom, start, sumUp, mark, setScrolled });
  latest.current = { home, toggle, choose, zoom, setZoom, start, sumUp, mark, setScrolled };
  useEffect(() => {
    if (!moved) return undefined;
    // Browsers allow few changes of the address a second.
    const timer = setTimeout(() => {
      const isHome = latest.current.start && isSameRange(moved.range, latest.current.start);
      latest.current.setZoom(isHome ? "" : formatRange(moved.range));
      setMoved(null);
    }, 250);
    return () => clearTimeout(timer);
  }, [moved]);
  const isReady = fine !== null;
  useLayoutEffect(() => {
    if (!place.current || !canvas.current || !map.current) return undefined;
    plane.current = new Plane(place.current, canvas.current, map.current, {
      moved: (next) => setMoved({ range: next, since: latest.current.zoom }),
      pointed: setPointed,
      pick: (hit) => latest.current.choose(hit),
      toggle: (track) => latest.current.toggle(track),
      reset: () => {
        const { start, home } = latest.current;
        if (start) plane.current?.move(start);
        home();
      },
      search: () => field.current?.focus(),
      selected: (next) => latest.current.sumUp(next),
      mark: () => latest.current.mark(),
      scrolled: (topPx) => latest.current.setScrolled(String(topPx)),
    });
    return () => plane.current?.close();
  }, [isReady]);
  const focused = useMemo(() => focus && focusOf(fine, focus), [fine, focus?.startNs, focus?.durationNs, focus?.name]);
  const wholeNs = fine?.answer.whole_ns ?? 1;
  const cause = chosenCause.value;
  const current = report.value.state === "ready" ? report.value.value : null;
  const names = useMemo(() => (tracks ?? []).map((track) => trackName(track, ranksOf(current))), [tracks, current]);
  const known = pictures.event?.event === pick ? pictures.event : null;
  const arrows = useMemo(() => (known ? arrowsOf(known) : NO_ARROWS), [known]);
  const step = range && stepAround(fine, range);
  const path = usePath(captureId, worker, hasPath && fine !== null ? (step ?? null) : null);
  useLayoutEffect(() => {
    plane.current?.show(
      {
        pictures: shown, tracks: tracks ?? NO_TRACKS, names, closed, pick, chosen: known, matches, focus: focused ?? null, findings, cause, selected, arrows, path,
      },
      range,
      wholeNs,
    );
  });
  const fullPx = useMemo(() => HEAD_PX + layOut(tracks ?? NO_TRACKS, closed).height, [tracks, closed]);
  const mostPx = props.heightPx ?? HEIGHT_PX;
  const heightPx = isReady ? Math.min(fullPx + 2, mostPx) : mostPx;
  // Bring into view what the timeline is about.
  const row = focused?.row ?? -1;
  useLayoutEffect(() => {
    if (scrolledText !== "") plane.current?.scrollTo(Number(scrolledText));
    else if (row < 0 && pick < 0) plane.current?.revealInner();
    else plane.current?.reveal(row);
  }, [row, isReady, heightPx]);
  if (pictures.problem && !fine) return <p class="muted timeline-problem">No timeline: {pictures.problem}.</p>;
  const show = (event: EventInfo): void => {
    setPick(event.event);
    act((it) => {
      it.reveal(event.row);
      it.move(showing(it.range, event.start_ns, event.start_ns + event.duration_ns));
    });
  };
  const act = (change: (plane: Plane) => void): void => void (plane.current && change(plane.current));
  const profile = profileTarget(selectedCapture.value);
  const [previous, next] = props.neighbors ?? [undefined, undefined];
  const rule = current && findings.length === 1 ? findingAt(current.findings, findings[0] ?? -1)?.rule_id : undefined;
  const isCoarse = isExported && fine !== null && range !== null && fine.answer.boxes.count.some((count) => count > 1);
  return (
    <div class="timeline">
      <div class="timeline-tools">
        <Search
          text={find}
          setText={setFind}
          found={found}
          field={field}
          pick={pick}
          show={show}
        />
        <span class="button-row">
          {props.goBack && (
            <button type="button" onClick={props.goBack}>
              Whole step
            </button>
          )}
          {select && (previous !== undefined || next !== undefined) && (
            <>
              <SelectButton label="Previous event" row={previous} select={select} />
              <SelectButton label="Next event" row={next} select={select} />
            </>
          )}
          <Tool label="Earlier" icon={<LeftIcon />} isDisabled={range?.fromNs === 0} onClick={() => act((it) => it.pan(-STRIDE))} />
          <Tool label="Later" icon={<RightIcon />} onClick={() => act((it) => it.pan(STRIDE))} />
          <Tool label="Zoom in" icon={<PlusIcon />} onClick={() => act((it) => it.zoom(1 / ZOOM))} />
          <Tool label="Zoom out" icon={<MinusIcon />} onClick={() => act((it) => it.zoom(ZOOM))} />
          <button type="button" aria-pressed={isTable} onClick={() => setTable(!isTable)}>
            As a table
          </button>
          {!isExported && range && (
            <button type="button" title="Sums by cause, operator, kernel, stream and line" onClick={mark}>
              {hit || known ? "Sum up the event" : "Sum up the view"}
            </button>
          )}
          {!isExported && step !== undefined && (
            <button type="button" aria-pressed={hasPath} onClick={() => setHasPath(!hasPath)}>
              Critical path
            </button>
          )}
          {profile && range && (
            <a class="button" target="_parent" href={traceViewerLink(BASE, profile, range.fromNs, range.toNs)}>
              Trace viewer <LinkIcon />
            </a>
          )}
          {range && (
            <ExcerptLink
              href={excerptUrl(captureId, findings.length === 1 ? findings[0] : undefined, { worker, ...range })}
              name={rule ?? "events"}
            />
          )}
        </span>
        <span class="muted timeline-length">
          {pictures.problem ? `${pictures.problem}.` : range && `${step == null ? "" : `Step ${step}, `}${formatDuration(range.toNs - range.fromNs)} ${focus ? `around ${around}` : "in view"}`}
          {!pictures.problem && findings.length > 0 && fine && fine.answer.claims.some(({ finding }) => findings.includes(finding)) && "; shaded: affected time"}
          {fine && fine.answer.left_out > 0 && `; ${formatPlural(fine.answer.left_out, "shorter event")} not stored`}
          {fine && fine.answer.ranks_left_out > 0 && `; ${formatPlural(fine.answer.ranks_left_out, "rank")} with too many events not included`}
          {path && tracks && `; ${describePath(path, names)}`}
          {isCoarse && "; in an exported page, short neighbors share a box"}
        </span>
      </div>
      {fine ? (
        <>
          <canvas ref={map} class="timeline-map" aria-hidden="true" title="The whole recording: drag to move" />
          <div class="timeline-frame">
            <div
              ref={place}
              class="timeline-plane"
              style={{ height: `${heightPx}px` }}
              role="application"
              aria-roledescription="timeline"
              aria-label={`Events ${focus ? `around ${focus.name || around}` : "of a step"}. ${KEYS}.`}
              tabIndex={0}
            >
              <canvas ref={canvas} aria-hidden="true" style={{ height: `${heightPx}px` }} />
              <div style={{ height: `${Math.max(fullPx - heightPx, 0)}px` }} />
            </div>
            {pointed && <Tip pointed={pointed} report={current} />}
          </div>
          <ChosenEvent event={known} picture={fine} hit={hit} pick={pick} report={current} fit={() => act((it) => it.fit())} close={() => setPick(-1)} show={show} />
          <Hits found={found} pick={pick} show={show} />
          {selected && !isExported && (
            <RangeSumsPanel
              captureId={captureId}
              worker={worker}
              range={selected}
              fit={() => act((it) => it.move(rangeAround({ startNs: selected.fromNs, durationNs: selected.toNs - selected.fromNs, name: "" }, 0.9)))}
              close={() => sumUp(null)}
              find={setFind}
            />
          )}
          {isTable && range && <CallsTable picture={fine} range={range} pick={pick} choose={setPick} />}
        </>
      ) : (
        <div class="timeline-placeholder" role="status" style={{ height: `${heightPx + HEAD_PX}px` }}>
          Loading events…
        </div>
      )}
    </div>
  );
}

/** The number of the step in the middle of a range. */
function stepAround(picture: Picture | null, { fromNs, toNs }: Range): number | undefined {
  const middle = (fromNs + toNs) / 2 - (picture?.fromNs ?? 0);
  return picture?.answer.steps.find(([, start, end]) => start <= middle && middle < end)?.[0];
}

/** The critical path of a step; of none if it is null. */
function usePath(captureId: string, worker: number, step: number | null): CriticalPath | null {
  const [path, setPath] = useState<CriticalPath | null>(null);
  useEffect(() => {
    setPath(null);
    if (step === null) return undefined;
    const controller = new AbortController();
    fetchPath(captureId, step, worker, controller.signal).then(setPath, () => undefined);
    return () => controller.abort();
  }, [captureId, worker, step]);
  return path;
}

/** What the critical path spends most of its time on. */
function describePath({ step, tracks }: CriticalPath, names: readonly string[]): string {
  const wholeNs = tracks.reduce((sum, [, ns]) => sum + ns, 0);
  const parts = tracks.slice(0, 3).map(([track, ns]) => `${formatShare(ns / wholeNs)} on ${names[track] ?? ""}`);
  return `critical path of step ${step ?? ""}: ${parts.join(", ")}`;
}

/** A test of the texts of a picture, kept for each picture. */
function useMatches(find: string): ((picture: Picture) => boolean[]) | null {
  return useMemo(() => {
    const wanted = find.trim().toLowerCase();
    if (wanted === "") return null;
    const kept = new WeakMap<Picture, boolean[]>();
    return (picture) => {
      const found = kept.get(picture) ?? picture.answer.texts.map((text) => text.toLowerCase().includes(wanted));
      kept.set(picture, found);
      return found;
    };
  }, [find]);
}

function focusOf(picture: Picture | null, focus: Focus): { startNs: number; endNs: number; row: number } {
  const box = picture ? boxOfFocus(picture, focus) : -1;
  const row = box < 0 ? -1 : (picture?.answer.boxes.row[box] ?? -1);
  return { startNs: focus.startNs, endNs: focus.startNs + focus.durationNs, row };
}

function hitOf(pictures: Picture[], pick: number): Hit | null {
  for (const picture of [...pictures].reverse()) {
    const box = pick < 0 ? -1 : boxOfEvent(picture, pick);
    if (box >= 0) return { picture, box };
  }
  return null;
}

interface ToolProps {
  label: string;
  icon: JSX.Element;
  isDisabled?: boolean;
  onClick(): void;
}

function Tool({ label, icon, isDisabled = false, onClick }: ToolProps): JSX.Element {
  return (
    <button type="button" class="tool" aria-label={label} title={label} disabled={isDisabled} onClick={onClick}>
      {icon}
    </button>
  );
}

function SelectButton(props: { label: string; row: number | undefined; select(row: number): void }): JSX.Element {
  const { label, row, select } = props;
  return (
    <button type="button" disabled={row === undefined} onClick={() => row !== undefined && select(row)}>
      {label}
    </button>
  );
}
