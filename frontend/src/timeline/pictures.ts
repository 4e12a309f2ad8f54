// Fetches what a timeline shows: first the range that is looked at, then everything, coarsely.
import { useEffect, useState } from "preact/hooks";
import { type EventInfo, ApiError } from "../state/answers";
import { fetchEvent, fetchWindow } from "../state/api";
import { isExported } from "../state/exported";
import { type Picture, covers, isExact, makePicture } from "./picture";
import { type Range, isSameRange } from "./range";

/** The whole recording, below what is fetched in detail. */
const BINS_OF_WHOLE = 1_000;
/** About the pixels of a timeline. */
const BINS_IN_VIEW = 1_400;
/** A cell is once or twice as long as what is looked at. */
const BINS_OF_CELL = 2_100;

export interface Pictures {
  /** What is looked at. */
  fine: Picture | null;
  /** The whole recording. */
  whole: Picture | null;
  /** The range that the server chose, as none was asked for. */
  chosen: Range | null;
  /** The event that is chosen, with its arguments and links; null until it is there. */
  event: EventInfo | null;
  problem: string;
}

interface State extends Pictures {
  about: string;
  /** The range that `fine` was asked for. */
  asked: Range | null;
  /** The finding that the server chose a range for. */
  chosenFor?: number | undefined;
}

const NONE: Omit<State, "about"> = { fine: null, whole: null, chosen: null, event: null, problem: "", asked: null };

/** `range` is null for a step in which the finding costs time, or a typical one; `event` is -1 for none. */
export function usePictures(captureId: string, worker: number, range: Range | null, event: number, finding?: number): Pictures {
  const about = `${captureId} ${worker}`;
  const [state, setState] = useState<State>({ ...NONE, about });
  const known = state.about === about ? state : NONE;
  const update = (next: Partial<State>): void =>
    setState((last) => ({ ...(last.about === about ? last : NONE), ...next, about }));
  const fail = (error: unknown, signal: AbortSignal): void => {
    if (!signal.aborted) update({ problem: error instanceof ApiError ? error.message : "The events cannot be shown" });
  };
  const cells = range && cellsAround(range);
  const isAsked = known.asked !== null && cells !== null && isSameRange(known.asked, cells);
  // Where each box is one event, another picture of the range has the same ones.
  const isSame = (fine: Picture, within: Range): boolean => isAsked || isExported || (covers(fine, within) && isExact(fine));
  const isChosen = (fine: Picture): boolean => known.chosen !== null && known.chosenFor === finding && covers(fine, known.chosen);
  const isCovered = known.fine !== null && (range === null ? isChosen(known.fine) : isSame(known.fine, range));
  useEffect(() => {
    if (isCovered) return undefined;
    const controller = new AbortController();
    const bins = range && cells ? BINS_OF_CELL * ((cells.toNs - cells.fromNs) / cellOf(range)) : BINS_IN_VIEW;
    fetchWindow(captureId, { worker, range: cells, bins: Math.round(bins), finding }, controller.signal).then(
      (answer) => {
        const fine = makePicture(answer);
        update({
          fine, problem: "", asked: cells,
          ...(range === null ? { chosen: { fromNs: fine.fromNs, toNs: fine.toNs }, chosenFor: finding } : {}),
        });
      },
      (error: unknown) => fail(error, controller.signal),
    );
    return () => controller.abort();
  }, [about, isCovered, cells?.fromNs, cells?.toNs, finding]);
  useEffect(() => {
    if (event < 0 || isExported) return undefined;
    const controller = new AbortController();
    // An event that is not there, as in a link to an older analysis, is no reason to show nothing.
    fetchEvent(captureId, event, worker, controller.signal).then((found) => update({ event: found }), () => undefined);
    return () => controller.abort();
  }, [about, event]);
  const wholeNs = known.fine?.answer.whole_ns ?? 0;
  useEffect(() => {
    if (known.fine === null || known.whole !== null) return undefined;
    if (known.fine.fromNs <= 0 && known.fine.toNs >= wholeNs) {
      update({ whole: known.fine });
      return undefined;
    }
    const controller = new AbortController();
    const all = { fromNs: 0, toNs: Math.max(wholeNs, 1) };
    fetchWindow(captureId, { worker, range: all, bins: BINS_OF_WHOLE }, controller.signal).then(
      (answer) => update({ whole: makePicture(answer) }),
      (error: unknown) => fail(error, controller.signal),
    );
    return () => controller.abort();
  }, [about, known.fine !== null, known.whole !== null]);
  return known;
}

const cellOf = ({ fromNs, toNs }: Range): number => 2 ** Math.ceil(Math.log2(toNs - fromNs));

/** What is fetched for a range: the cells of a grid that it lies in, and one more on each side, so that
 *  moving shows events, and one range always shows the same boxes. */
export function cellsAround(range: Range): Range {
  const cell = cellOf(range);
  return {
    fromNs: Math.max(0, (Math.floor(range.fromNs / cell) - 1) * cell),
    toNs: (Math.ceil(range.toNs / cell) + 1) * cell,
  };
}
