// Fetches what a timeline shows: first the range that is looked at, then everything, coarsely.
import { useEffect, useState } from "preact/hooks";
import { type EventInfo, ApiError } from "../state/answers";
import { fetchWindow } from "../state/api";
import { isExported } from "../state/exported";
import { type Picture, covers, makePicture } from "./picture";
import type { Range } from "./range";

/** How much is fetched on each side, in lengths of the timeline, so that moving it shows events. */
const READ_AHEAD = 1;
/** The whole recording, below what is fetched in detail. */
const BINS_OF_WHOLE = 1_000;
/** About the pixels of a timeline. */
const BINS_IN_VIEW = 1_400;

export interface Pictures {
  /** What is looked at. */
  fine: Picture | null;
  /** The whole recording. */
  whole: Picture | null;
  /** The range that the server chose, as none was asked for. */
  chosen: Range | null;
  /** The event that was asked for. */
  event: EventInfo | null;
  problem: string;
}

const NONE: Pictures = { fine: null, whole: null, chosen: null, event: null, problem: "" };

/** `range` is null for a typical step; `event` is -1 for none. */
export function usePictures(captureId: string, worker: number, range: Range | null, event: number): Pictures {
  const about = `${captureId} ${worker}`;
  const [state, setState] = useState<Pictures & { about: string }>({ ...NONE, about });
  const known: Pictures = state.about === about ? state : NONE;
  const update = (next: Partial<Pictures>): void =>
    setState((last) => ({ ...(last.about === about ? last : NONE), ...next, about }));
  const fail = (error: unknown, signal: AbortSignal): void => {
    if (!signal.aborted) update({ problem: error instanceof ApiError ? error.message : "The events cannot be shown" });
  };
  const isCovered = known.fine !== null && (range === null ? known.chosen !== null : covers(known.fine, range) || isExported);
  const isEventKnown = event < 0 || known.event?.event === event || (known.fine?.answer.boxes.event.includes(event) ?? false);
  const isNeeded = !isCovered || (!isEventKnown && !isExported);
  useEffect(() => {
    if (!isNeeded) return undefined;
    const controller = new AbortController();
    const wide = range && widened(range);
    const bins = range && wide ? BINS_IN_VIEW * ((wide.toNs - wide.fromNs) / (range.toNs - range.fromNs)) : BINS_IN_VIEW;
    fetchWindow(captureId, { worker, range: wide, bins: Math.round(bins), event }, controller.signal).then(
      (answer) => {
        const fine = makePicture(answer);
        update({
          fine, problem: "",
          ...(range === null ? { chosen: { fromNs: fine.fromNs, toNs: fine.toNs } } : {}),
          ...(answer.event ? { event: answer.event } : {}),
        });
      },
      (error: unknown) => fail(error, controller.signal),
    );
    return () => controller.abort();
  }, [about, isNeeded, range?.fromNs, range?.toNs, event]);
  const wholeNs = known.fine?.answer.whole_ns ?? 0;
  useEffect(() => {
    if (known.fine === null || known.whole !== null) return undefined;
    if (known.fine.fromNs <= 0 && known.fine.toNs >= wholeNs) {
      update({ whole: known.fine });
      return undefined;
    }
    const controller = new AbortController();
    const all = { fromNs: 0, toNs: Math.max(wholeNs, 1) };
    fetchWindow(captureId, { worker, range: all, bins: BINS_OF_WHOLE, event: -1 }, controller.signal).then(
      (answer) => update({ whole: makePicture(answer) }),
      (error: unknown) => fail(error, controller.signal),
    );
    return () => controller.abort();
  }, [about, known.fine !== null, known.whole !== null]);
  return known;
}

function widened({ fromNs, toNs }: Range): Range {
  const extraNs = isExported ? 0 : (toNs - fromNs) * READ_AHEAD;
  return { fromNs: Math.max(0, fromNs - extraNs), toNs: toNs + extraNs };
}
