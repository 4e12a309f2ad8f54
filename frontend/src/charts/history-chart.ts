// Step times of the recordings of a run, stacked by cause.
import * as Plot from "@observablehq/plot";
import { causeColor } from "./colors";
import { formatCount, formatDuration, formatPlural, formatTick } from "../format";
import type { History, Recording } from "../report";
import { sessionName } from "../text";

const LEFT_PX = 56;
/** Wider bars look like slabs. */
const WIDEST_BAR_PX = 72;
/** Room for a time below a bar. */
const LABEL_PX = 76;

interface Bar {
  /** The number of the recording, from 1. */
  number: string;
  recording: Recording;
  cause: string;
  causeLabel: string;
  perStepNs: number;
}

/** The parts of all bars. A recording without steps has none. */
export const historyBars = ({ recordings }: History): Bar[] =>
  recordings.flatMap((recording, place) =>
    recording.causes.map(({ cause, label, per_step_ns: perStepNs }) => ({
      number: String(place + 1),
      recording,
      cause,
      causeLabel: label,
      perStepNs,
    })),
  );

/** The label below each bar: number, time, date if it changes, and step if it is known. */
export function momentLabels({ recordings }: History): string[] {
  const times = recordings.map(({ recorded }) => sessionName(recorded).split(" "));
  // Show seconds only if two recordings were made within a minute.
  const minutes = times.map(([date, time = ""]) => `${date} ${time.slice(0, 5)}`);
  const hasSeconds = new Set(minutes).size < minutes.length;
  return recordings.map(({ moment }, place) => {
    const [date, time] = times[place] ?? [];
    const lines = [String(place + 1)];
    if (date && time) {
      lines.push(hasSeconds ? time : time.slice(0, 5));
      if (date !== times[place - 1]?.[0]) lines.push(date);
    }
    if (moment.step !== null) lines.push(`step ${formatCount(moment.step)}`);
    return lines.join("\n");
  });
}

/** The recording in words: `2 · 2026-11-23 01:26:22 · step 900`. */
export function describeMoment({ recorded, moment, run }: Recording, number: number): string {
  const name = sessionName(recorded) || run.name;
  return [String(number), name, ...(moment.step === null ? [] : [`step ${formatCount(moment.step)}`])].join(" · ");
}

export function drawHistory(history: History, selectedId: string, width: number): Plot.PlotOptions {
  const { recordings } = history;
  const bars = historyBars(history);
  const numbers = recordings.map((_, place) => String(place + 1));
  const labels = new Map(momentLabels(history).map((label, place) => [String(place + 1), label]));
  const every = Math.max(1, Math.ceil((numbers.length * LABEL_PX) / Math.max(width - LEFT_PX, 1)));
  const padding = numbers.length > 30 ? 0.1 : 0.25;
  // The padding is also outside of the first and the last bar.
  const barPx = ((width - LEFT_PX) / (numbers.length + padding)) * (1 - padding);
  const inset = Math.max(0, (barPx - WIDEST_BAR_PX) / 2);
  const usual = recordings.flatMap(({ moment: { usual_step_ns: ns } }, place) =>
    ns === null ? [] : [{ number: String(place + 1), ns }],
  );
  const selected = recordings.flatMap(({ run }, place) =>
    run.id === selectedId && run.step_time_ns !== null ? [{ number: String(place + 1), ns: run.step_time_ns }] : [],
  );
  const unknown = recordings.flatMap(({ causes }, place) => (causes.length === 0 ? [{ number: String(place + 1) }] : []));
  const barTitle = ({ recording, number, causeLabel, perStepNs }: Bar): string =>
    [
      describeMoment(recording, Number(number)),
      `${formatDuration(recording.run.step_time_ns)} per step`,
      ...(recording.moment.usual_step_ns === null
        ? []
        : [`${formatDuration(recording.moment.usual_step_ns)} without the profiler`]),
      `${causeLabel}: ${formatDuration(perStepNs)}`,
    ].join("\n");
  return {
    height: Math.max(260, Math.min(350, width * 0.42)),
    marginLeft: LEFT_PX,
    marginRight: 4,
    marginTop: 18,
    marginBottom: 70,
    x: { domain: numbers, axis: null, padding },
    y: { label: null, tickFormat: (ns: number) => formatTick(ns, "ns"), ticks: 4, nice: 4, grid: true, tickSize: 0 },
    color: { type: "identity" },
    marks: [
      Plot.axisX(numbers.filter((_, place) => place % every === 0), {
        tickFormat: (number: string) => labels.get(number) ?? number,
        lineHeight: 1.3,
        label: null,
        tickSize: 0,
      }),
      Plot.barY(
        bars,
        Plot.stackY({
          x: "number",
          y: "perStepNs",
          fill: ({ cause }: Bar) => causeColor(cause),
          insetLeft: inset,
          insetRight: inset,
          title: barTitle,
          tip: { format: { x: false, y: false, fill: false }, lineHeight: 1.35 },
        }),
      ),
      Plot.text(unknown, { x: "number", text: () => "no steps", frameAnchor: "bottom", dy: -8, fill: "var(--text-muted)" }),
      Plot.text(selected, { x: "number", y: "ns", text: () => "▾", dy: -9, fontSize: 15 }),
      Plot.tickY(usual, {
        x: "number",
        y: "ns",
        stroke: "currentColor",
        strokeWidth: 2,
        insetLeft: Math.max(inset - 6, 0),
        insetRight: Math.max(inset - 6, 0),
        pointerEvents: "none",
      }),
      Plot.ruleY([0]),
    ],
  };
}

/** The causes of all recordings, with the longest time of each, the longest first. */
export function causesOf(history: History): { cause: string; label: string }[] {
  const most = new Map<string, { cause: string; label: string; ns: number }>();
  for (const { cause, causeLabel: label, perStepNs: ns } of historyBars(history)) {
    most.set(cause, { cause, label, ns: Math.max(ns, most.get(cause)?.ns ?? 0) });
  }
  return [...most.values()].sort((a, b) => b.ns - a.ns);
}

export const describeHistory = (history: History): string =>
  `Step times of ${formatPlural(history.recordings.length, "recording")}, stacked by cause; the table below lists them`;
