// What the plugin's routes answer, beside the types that `report.ts` generates.
import type { FindingInfo, NoteInfo, Report } from "../report";

export type Severity = FindingInfo["severity"];

/** A capture: its files, the state of its analysis, and what that found, null before. */
export interface Capture {
  id: string;
  run: string;
  session: string;
  /** When it was recorded, in the form of session names; empty if unknown. */
  recorded: string;
  framework: string;
  /** What it is a file of, in words. */
  format_label: string;
  /** Whether the Profile tab reads such files at all. */
  is_for_profile_tab: boolean;
  files: number;
  /** Whether event files lie in the directory of its run. */
  has_scalars: boolean;
  /** Whether they are small enough to be read beside its report. */
  reads_scalars: boolean;
  size_bytes: number;
  /** Changes with its files. */
  version: string;
  status: "new" | "queued" | "running" | "done" | "failed";
  /** Why the analysis failed. */
  failure: string | null;
  is_synthetic: boolean | null;
  headline: string | null;
  device: string | null;
  step_time_ns: number | null;
  /** The title of the finding to begin with. */
  first_change: string | null;
  /** That finding in links. */
  finding: string | null;
  /** The share of the step that it saves. */
  saves_share: number | null;
  severity: Severity | null;
  /** How many findings the user decided against; absent in pages of older versions. */
  set_aside?: number | null;
  /** How far its report can be trusted; absent before, and in pages of older versions. */
  trust?: NonNullable<Report["trust"]>["level"] | null;
  /** The run that it is a recording of; absent in exported pages. */
  series?: string;
  /** How often its run was recorded; absent in exported pages. */
  recordings?: number;
  /** The captures to compare it with, best first. */
  partners: Partner[];
  /** How the Profile tab names the capture; absent if that tab cannot show it. */
  profile_run?: string | null;
  profile_host?: string | null;
}

/** How the steps of a capture compare with those of another. */
export interface Mark {
  /** The other capture's id. */
  base: string;
  /** Of the mean step: 0.1 takes a tenth longer. */
  change_share: number;
  verdict: "slower" | "faster" | "inconclusive";
}

/** A comparison worth looking at, from the view of one of its captures. */
export interface Partner {
  /** The other capture's. */
  id: string;
  base: string;
  target: string;
  reason: string;
}

export interface Scan {
  root: string;
  scanned_files: number;
  is_complete: boolean;
  /** What was not scanned, and why. */
  gaps: string[];
  is_scanning: boolean;
}

export interface RejectedFile {
  path: string;
  reason: string;
}

/** Some of the files that were not read, and how many there are. */
export interface RejectedFiles {
  rejected: RejectedFile[];
  rejected_count: number;
}

export interface CaptureList extends RejectedFiles {
  captures: Capture[];
  /** Absent in exported pages, which have no links to what a server makes. */
  token?: string;
  /** Whether notes on findings can be written. */
  allows_notes?: boolean;
  /** How to allow that. */
  notes_hint?: string;
  /** Whether TensorBoard knows the program's code. */
  has_code?: boolean;
  /** How many running programs this page may ask to record. */
  programs?: number;
  scan: Scan;
}

/** What came of giving up an analysis. */
export interface Canceled {
  is_canceled: boolean;
  /** How many others wait for it, if any: it goes on. */
  others_waiting?: number;
}

export interface Progress {
  status: "queued" | "running";
  stage: string;
  progress: number | null;
  queue_position: number | null;
}

/** A thread, stream or line of a device; its rows are lanes that are drawn below one another. */
export interface Track {
  label: string;
  process: string;
  kind: "host" | "device";
  device: number | null;
  worker: number;
  row: number;
  rows: number;
}

/** An event, with its texts; empty if unknown. */
export interface EventInfo {
  event: number;
  row: number;
  start_ns: number;
  duration_ns: number;
  kind: string;
  name: string;
  module: string;
  line: string;
  /** Shapes, types, grid, bytes and so on, each with its label; absent in exported pages. */
  arguments?: [label: string, value: string][];
  /** What it comes from and leads to; only of an event that was asked for. */
  linked?: LinkedEvent[];
}

/** An event that another one comes from (launch, operator, forward) or leads to (work, backward). */
export interface LinkedEvent extends EventInfo {
  link: "launch" | "operator" | "forward" | "work" | "backward";
}

/** What a timeline draws of a range of time: see `report/timeline/window.py`. */
export interface EventWindow {
  worker: number;
  from_ns: number;
  to_ns: number;
  /** The time that causes are given to. */
  window_ns: [startNs: number, endNs: number];
  whole_ns: number;
  bin_ns: number;
  /** Events that are not stored. */
  left_out: number;
  /** Ranks that have too many events to be there. */
  ranks_left_out: number;
  tracks: Track[];
  kinds: string[];
  texts: string[];
  /** Columns by row and start, which counts from `from_ns`. Short neighbors share a box. */
  boxes: {
    row: number[];
    start_ns: number[];
    duration_ns: number[];
    busy_ns: number[];
    count: number[];
    /** The longest event. */
    event: number[];
    kind: number[];
    /** Indices into `texts`; -1 if unknown. */
    name: number[];
    module: number[];
    line: number[];
  };
  /** The time of each cause in equal parts of the range. */
  causes: { bins: number; total_ns: Record<string, number[]> };
  /** The time in the range that findings claim, from `from_ns`. */
  claims: { finding: number; intervals: [startNs: number, endNs: number][] }[];
  steps: [number: number, startNs: number, endNs: number][];
}

/** Events whose names contain a text: all of them counted, the longest listed in order of time. */
export interface FoundEvents {
  count: number;
  total_ns: number;
  events: EventInfo[];
  /** Those that take the most time. */
  names: FoundName[];
}

export interface FoundName {
  name: string;
  count: number;
  total_ns: number;
  longest: EventInfo;
}

/** The time of one operator, kernel, stream or line in a range. */
export interface SumRow {
  name: string;
  count: number;
  /** On the host, without the operators inside. */
  own_ns: number;
  device_ns: number;
}

export interface SumTable {
  /** Those that take the most time first. */
  rows: SumRow[];
  truncated: number;
}

/** What takes the time of a range: see `report/timeline/range_sums.py`. */
export interface RangeSums {
  from_ns: number;
  to_ns: number;
  /** The step in the middle of the range, and the parts of it where the range begins and ends. */
  step: { number: number; from_part: number; to_part: number } | null;
  steps: number[];
  has_device: boolean;
  causes: { cause: string; total_ns: number }[];
  operators: SumTable;
  kernels: SumTable;
  streams: SumTable;
  lines: SumTable;
}

/** What a step waits for, back from its end: see `report/timeline/range_sums.py`. */
export interface CriticalPath {
  step: number | null;
  segments: [track: number, fromNs: number, toNs: number][];
  /** The time on each track, the longest first. */
  tracks: [track: number, ns: number][];
}

/** A patch of the user's code for a finding, and the command that proves it. */
export interface SuggestedPatch {
  rule_id: string;
  /** The finding's. */
  title: string;
  changes: string[];
  /** What to check after the change. */
  notes: string[];
  /** Empty if there is none: then there is a reason, and places to look at. */
  patch: string;
  reason: string;
  places: string[];
  command: string;
}

export interface RuleInfo {
  id: string;
  title: string;
  category: string;
  refines: string | null;
  is_preview: boolean;
  needs: string[];
  limits: { name: string; value: number; unit: string; why: string }[];
}

export interface Doctor extends Omit<CaptureList, "captures" | "token"> {
  notes: NoteInfo[];
}

export interface RulePage {
  id: string;
  title: string;
  page: string;
}

/** A request that failed: what went wrong, where, and what to do next. */
export class ApiError extends Error {
  readonly where: string;
  readonly hint: string;
  constructor(message: string, where = "", hint = "") {
    super(message);
    this.where = where;
    this.hint = hint;
  }
}

export const toApiError = (error: unknown): ApiError =>
  error instanceof ApiError
    ? error
    : new ApiError("The response cannot be shown", "", `Reload the page. (${String(error)})`);
