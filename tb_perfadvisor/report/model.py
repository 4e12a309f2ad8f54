"""The report's types: one contract for JSON, tab, terminal and Python.

`schema.json` beside this file and the frontend's types are generated from these classes. An
absent number is None (`null`), never 0 and never NaN. Durations are nanoseconds; `share` is
0-1 of the step time unless its description says otherwise. Savings and step times are per
step: means over the used steps, divided once from totals that sum exactly.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

SCHEMA_VERSION = 1

Severity = Literal["high", "medium", "low"]
Basis = Literal["measured", "simulated", "modeled", "heuristic"]
Status = Literal["found", "passed", "not_applicable", "failed"]
Cell = str | int | float | bool | None


class DeviceInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The accelerators of one worker: their kind, and how many are visible and used."""

    kind: str
    name: str
    """Empty if it is unknown."""
    identified_by: str = ""
    """What the device was recognized by, if the profile does not name it; otherwise empty."""
    visible: int
    """How many exist."""
    used: int | None
    """How many ran kernels or collectives; None if the events of the device are missing."""


class Worker(msgspec.Struct, frozen=True, kw_only=True):
    """One rank or host."""

    rank: int | None
    host: str
    file: str
    """Relative to the logdir."""
    events: int
    duration_ns: int
    device: DeviceInfo | None


class ExcludedStep(msgspec.Struct, frozen=True, kw_only=True):
    """A step that is excluded from the analysis, and why."""

    index: int
    reason: str


class StepsInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The source of the steps, and their times, for the reference worker."""

    source: str
    """The marker (`ProfilerStep`), or what they were inferred from, or `none`."""
    is_inferred: bool
    used: int
    excluded: list[ExcludedStep]
    window_ns: int
    """Length of the used window: the used steps, or the whole trace without steps."""
    mean_ns: int | None
    median_ns: int | None
    min_ns: int | None
    max_ns: int | None
    p90_ns: int | None


class BreakdownPart(msgspec.Struct, frozen=True, kw_only=True):
    """One cause's part of the used window. The parts sum exactly to `window_ns`."""

    cause: str
    label: str
    total_ns: int
    share: float


class OperatorPlacement(msgspec.Struct, frozen=True, kw_only=True):
    """The shares of the framework's operators that run on the device."""

    device_share_by_time: float | None
    device_share_by_count: float | None


class KernelSummary(msgspec.Struct, frozen=True, kw_only=True):
    """All executions of one kernel in the used window."""

    name: str
    family: str
    count: int
    total_ns: int
    share: float
    """Of device compute time."""


class MemoryInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Device memory over the whole trace."""

    peak_allocated_bytes: int | None
    peak_reserved_bytes: int | None
    capacity_bytes: int | None


class HostMemoryInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Host memory over the whole trace, of a program that ran on the CPU alone."""

    peak_allocated_bytes: int
    is_relative: bool
    """Counted from the start of the recording; more may have been allocated before."""


class OperatorSummary(msgspec.Struct, frozen=True, kw_only=True):
    """All executions of one kind of operator in the used window, without the operators inside."""

    name: str
    count: int
    total_ns: int
    share: float
    """Of the time of all operators."""


class FlopInfo(msgspec.Struct, frozen=True, kw_only=True):
    """FLOP of matrix products, convolutions and attention, on all devices of the rank."""

    model_per_step: float | None
    """What the model needs: no recomputation, and attention in full whatever its mask."""
    executed_per_step: float | None
    """What the devices compute: with recomputation, and without what causal kernels skip."""
    peak_flop_per_s: float | None
    """Dense peak of one device, weighted by the FLOP of each number format."""
    devices: int | None
    """Devices whose work was counted."""
    unknown_because: str
    """Why MFU is unknown, and how to record what is missing; empty if it is known."""
    unknown_in_short: str
    """The same in few words: `no shapes recorded`."""


class ServingInfo(msgspec.Struct, frozen=True, kw_only=True):
    """How an inference server generates tokens, on one rank; null is unknown."""

    decode_steps: int
    """Steps that generate tokens and read no prompts."""
    decode_requests: float | None
    """Mean requests of these steps."""
    decode_step_ns: int | None
    """Mean time from the start of such a step to the start of the next step."""
    decode_device_ns: int
    """Mean time in which the device executes such a step."""
    generated_per_s: float | None
    """Tokens that decoding generates per second, over all steps."""


class Overview(msgspec.Struct, frozen=True, kw_only=True):
    """The key numbers of the reference worker."""

    window_ns: int
    steps: int
    step_time_ns: int | None
    """Mean; None without steps."""
    breakdown: list[BreakdownPart]
    device_compute_share: float | None
    device_busy_share: float | None
    """Of the step: kernels, copies and memsets."""
    device_busy_share_of_span: float | None = None
    """Like `device_busy_share`, but of the time from the first to the last device event of the used
    steps."""
    operators: OperatorPlacement
    precision: dict[str, float] | None
    """Shares of device compute time by width: keys 8, 16, 32, 64, unknown."""
    storage: dict[str, float]
    """Shares of kernel time in products that multiply weights in more bits than they are stored in,
    by the latter: keys 4, 8. Empty if no kernel's name tells."""
    input_wait_share: float | None
    exposed_communication_share: float | None
    exposed_copy_share: float | None
    between_steps_share: float | None
    mfu: float | None
    """Model FLOP divided by the step time and the devices' dense peak."""
    hfu: float | None
    """Executed FLOP, likewise."""
    flop: FlopInfo
    kernels: list[KernelSummary]
    kernels_truncated: int
    """How many kernels are not listed."""
    memory: MemoryInfo | None
    host_memory: HostMemoryInfo | None
    """None if a device does the work, or if it was not recorded."""
    top_operator: OperatorSummary | None
    """The operator with the most time of its own; None if a device does the work."""
    samples_per_step: float | None
    """Samples that one rank processes in each step; None if the shapes do not tell."""
    samples_per_s: float | None
    """The same per second."""
    tokens_per_step: float | None
    """Tokens that one rank processes in each step; None if the shapes do not tell."""
    tokens_per_s: float | None
    """The same per second."""
    throughput_source: str
    """How tokens or samples are known, or why neither is."""
    serving: ServingInfo | None = None
    """None if the program annotates no steps that decode."""


class KeyNumber(msgspec.Struct, frozen=True, kw_only=True):
    """A number for the top of a report. Numbers that do not apply to a program are not listed."""

    id: str
    label: str
    value: float | int | None
    """None if it is unknown."""
    unit: str
    """ns, bytes, share, samples/s or tokens/s."""
    of: str
    """What a share is of: `step time`. Otherwise empty."""
    notes: list[str]
    """Short remarks: `by count 99.1 %`."""
    share: float | None
    """The value as a part of a whole (0-1); None if it is none."""
    definition: str


class SavingInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Wall-clock time per step that a change would save."""

    low_ns: int
    expected_ns: int
    high_ns: int
    share_low: float
    share_expected: float
    share_high: float
    marginal_ns: int
    """What it adds to the savings of the findings ranked above it."""
    basis: Basis


class Scope(msgspec.Struct, frozen=True, kw_only=True):
    """Where a finding was seen."""

    ranks: list[int]
    first_step: int | None
    last_step: int | None


class EvidenceRow(msgspec.Struct, frozen=True, kw_only=True):
    """One event of the trace."""

    worker: int
    start_ns: int
    duration_ns: int
    track: str
    name: str
    step: int | None
    source: str | None
    """Source line or Python frame."""


class EventsEvidence(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="events"):
    """Events, the costliest first."""

    title: str
    rows: list[EvidenceRow]
    truncated: int


class SpanEvidence(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="span"):
    """A span of time on one track."""

    title: str
    worker: int
    start_ns: int
    end_ns: int
    track: str
    note: str


class TableColumn(msgspec.Struct, frozen=True, kw_only=True):
    """A column of a table; `unit` is ns, bytes, share, count, bytes/s, flop/s or empty."""

    key: str
    label: str
    unit: str


class TableEvidence(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="table"):
    """A table."""

    title: str
    columns: list[TableColumn]
    rows: list[list[Cell]]
    truncated: int


class SeriesEvidence(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="series"):
    """A value over steps or time."""

    title: str
    x_unit: str
    unit: str
    points: list[tuple[float, float]]


Evidence = EventsEvidence | SpanEvidence | TableEvidence | SeriesEvidence


class Remedy(msgspec.Struct, frozen=True, kw_only=True):
    """What to change, with the code to write."""

    text: str
    snippet: str | None
    language: str
    framework: str
    reference: str | None
    """URL of the documentation."""


class SourceExcerpt(msgspec.Struct, frozen=True, kw_only=True):
    """The lines around a place, from the user's repository."""

    path: str | None
    """Relative to the repository; None if several files match."""
    first_line: int | None
    """The number of the first of `lines`; None without lines."""
    lines: list[str]
    link: str | None
    """By the user's URL pattern."""
    candidates: list[str]
    """The files that match equally well, if there are several."""
    note: str
    """What is uncertain: several files match, or the file has changed; otherwise empty."""


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the user's code, as the profile names it."""

    file: str
    """The last two parts of its path: `models/net.py`."""
    line: int
    function: str
    """Empty if it is unknown."""
    source: SourceExcerpt | None = None
    """Its code; None if no repository was named, or has no such file."""


class LargerBatchInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A batch that takes about as long: more samples in the same time, not less time per step."""

    rows: int
    """Rows that each step processes now: samples, or positions of all samples."""
    more_rows: int
    low_share: float
    """Share of the time per row that a batch of `more_rows` saves at least."""
    expected_share: float
    high_share: float


class FindingInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One piece of advice."""

    rule_id: str
    refines: str | None
    title: str
    heading: str | None
    """The heading of a group: `Input stall, 56.3 ms per step: do one of these`. Set if one of the
    findings that refine this one is the better advice; None otherwise."""
    category: str
    severity: Severity
    summary: str
    saving: SavingInfo | None
    causes: list[str] = []
    """The causes of the time that its saving is taken from, the largest first."""
    larger_batch: LargerBatchInfo | None = None
    """Set if the change brings more samples in the same time."""
    scope: Scope
    evidence: list[Evidence]
    places: list[Place] = []
    """The lines of code that it is about, the costliest first; empty if the profile has none."""
    remedies: list[Remedy]
    when_to_ignore: str
    how_to_verify: str
    is_preview: bool


class FirstFinding(msgspec.Struct, frozen=True, kw_only=True):
    """The finding to begin with."""

    rule_id: str
    index: int
    """In `findings`."""


class CombinedSaving(msgspec.Struct, frozen=True, kw_only=True):
    """All findings together: their union, never their sum."""

    low_ns: int
    expected_ns: int
    high_ns: int
    share_expected: float


class Missing(msgspec.Struct, frozen=True, kw_only=True):
    """A signal that rules need and the profile lacks, and how to record it."""

    signal: str
    reason: str
    remedy: str


class Outcome(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The outcome of one rule. What has its default is left out of the JSON."""

    rule_id: str
    status: Status
    missing: list[str] = []
    """The signals that the rule needs and the profile lacks: see the report's `missing_signals`."""
    reason: str | None = None
    """Why the rule failed, or why what it found is not shown."""
    elapsed_ms: float


class RecordingGap(msgspec.Struct, frozen=True, kw_only=True):
    """A change to the recording, and the checks that it would allow."""

    remedy: str
    """How to record what is missing."""
    signals: list[str]
    """What is missing."""
    reasons: list[str]
    """Why the checks could not run."""
    rule_ids: list[str]


class NoteInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Something about the profile itself."""

    id: str
    severity: Literal["info", "warning", "error"]
    message: str
    remedy: str


class WorkloadEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the program, and what in the profile proves it."""

    part: str
    evidence: str


class WorkloadInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What program was profiled. What is not listed is unknown, not absent."""

    mode: str
    """training, forward only, inference server, or unknown."""
    framework: str
    """The framework on top of the base framework; unknown if no event tells."""
    parallelism: list[str]
    input: list[str]
    compiled: list[str]
    features: list[str]
    evidence: list[WorkloadEvidence]


class RecordedInfo(msgspec.Struct, frozen=True, kw_only=True):
    """When a profile was recorded, by the clock of its reference worker, in Unix time."""

    start_unix_ns: int
    end_unix_ns: int


class RealSaving(msgspec.Struct, frozen=True, kw_only=True):
    """What all findings together save in a run that is not profiled."""

    low_ns: int
    """Per step, as are the next two."""
    expected_ns: int
    high_ns: int
    logged_ns: int
    """What is expected over the steps that the run has logged."""
    rest_ns: int | None
    """The same over the steps that are left; None if it is unknown how many."""


class CostInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What a run costs at the price that the user gave, in the currency of that price."""

    price_per_device_hour: float
    devices: int
    """Of all ranks; the ranks of a program that runs on the CPU."""
    per_day: float
    logged: float
    """For the time in which the run logged."""
    saved_per_day: float | None
    """What all findings together are expected to save; None without a saving."""
    per_million_tokens: float | None
    per_million_samples: float | None


class WholeRunInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What the scalars that the run logged say about the steps that are not profiled."""

    run: str
    """Of the event files."""
    tag: str
    """Whose times were used."""
    step_ns: float
    """Usual time per step around the recording, without the profiler."""
    profiled_step_ns: float
    """Median in the profile."""
    slowdown: float | None
    """How much slower the steps were while recorded: 0.2 is 20 %. None if the profile counts other
    steps."""
    varies_ns: tuple[float, float] | None
    """The range of nine of ten intervals around the recording, if the profile's steps lie in it."""
    first_step: int
    last_step: int
    """That was logged so far."""
    elapsed_ns: int
    """From the first logged step to the last."""
    steps_left: int | None
    """None unless the user said how many there are."""
    saving: RealSaving | None
    cost: CostInfo | None
    """None unless the user gave a price."""
    sentences: list[str]
    """All of this in words."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Everything found in one capture."""

    id: str
    run: str
    session: str
    framework: str
    formats: list[str]
    is_synthetic: bool
    world_size: int | None
    reference_worker: int
    """Index into `workers`."""
    caption: str
    """What was profiled: framework, device, rank and steps."""
    workload: WorkloadInfo
    workers: list[Worker]
    steps: StepsInfo
    overview: Overview
    key_numbers: list[KeyNumber]
    """The most telling numbers of the overview, in the order in which to show them."""
    headline: str
    """What matters most, in one sentence."""
    first: FirstFinding | None
    """The top-ranked finding, or one that refines it and saves nearly as much."""
    findings: list[FindingInfo]
    """Best first."""
    combined_saving: CombinedSaving | None
    outcomes: list[Outcome]
    missing_signals: list[Missing]
    """What outcomes name as missing, each once."""
    not_checked: list[RecordingGap]
    """What to record so that more checks can run. Checks that cannot concern this program are not
    listed."""
    is_start_up: bool
    """Whether the profile mostly shows what happens only once, so that its findings say little."""
    notes: list[NoteInfo]
    recorded: RecordedInfo | None = None
    """None if the profile does not tell."""
    whole_run: WholeRunInfo | None = None
    """None if the run logged no scalars around the recording. They change while it trains, so they
    are added when a report is shown, and never stored with it."""
    views: dict[str, Any] | None = None
    """The views by name, if requested (`--views`): see `report/views`."""


class Generator(msgspec.Struct, frozen=True, kw_only=True):
    """The program that made the document."""

    name: str
    version: str


class Rejected(msgspec.Struct, frozen=True, kw_only=True):
    """A file that was not read, and why."""

    path: str
    reason: str


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """What `perfadvisor analyze --format json` prints."""

    schema_version: int
    generator: Generator
    reports: list[Report]
    rejected: list[Rejected]
