"""Runs compared with a base.

Durations are nanoseconds, of one step of the
reference worker where both runs have steps (`per` is `step`), else of all that was analyzed
(`window`). A change is the target's value minus the base's: negative is faster.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from tb_perfadvisor.contract.model.document import Generator
from tb_perfadvisor.contract.model.findings import Basis
from tb_perfadvisor.contract.run_row import Severity

Verdict = Literal[
    "faster", "slower", "inconclusive", "scaled", "no_steps", "memory", "not_comparable"
]
"""`scaled`: on another number of devices, where the step time alone says little. `memory`: both are
memory snapshots, which have no steps."""
Per = Literal["step", "window"]
LossVerdict = Literal["same", "higher", "lower", "unclear"]
OperationStatus = Literal["added", "removed", "slower", "faster"]
FindingStatus = Literal["fixed", "new", "changed", "unchanged", "unknown"]
FindingState = Literal["found", "absent", "unknown"]
"""Of one recording. `unknown`: the rule could not check it."""


class ComparedRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run's row in the table of runs. Shares are of its used window."""

    id: str
    """The capture's."""
    name: str
    """Distinguishes the run from the others of the comparison."""
    session: str
    framework: str
    device: str | None
    """The accelerator's name; empty if the profile does not name it, null on the CPU."""
    is_synthetic: bool
    world_size: int | None
    devices: int | None
    """Of all ranks; the number of ranks on the CPU, null if the devices' events are missing."""
    steps: int
    step_time_ns: int | None
    """Mean; null when no steps are known."""
    window_ns: int
    batch: int | None
    """Samples in a forward pass of one rank, if convolutions or embeddings show it."""
    tokens_per_s: float | None
    """Of one rank, if the shapes of its embeddings show it, or the user said so."""
    samples_per_s: float | None
    """Of one rank, if the shapes show how many samples a step reads."""
    mfu: float | None
    """Model FLOP divided by the step time and the dense peak of the devices."""
    device_compute_share: float | None
    device_busy_share: float | None
    sixteen_bit_share: float | None
    """Of device compute time."""
    input_wait_share: float | None
    exposed_communication_share: float | None
    between_steps_share: float | None
    peak_allocated_bytes: int | None
    findings: int


class TimeChange(msgspec.Struct, frozen=True, kw_only=True):
    """How the mean step changed, and how certainly."""

    base_ns: int
    target_ns: int
    change_ns: int
    change_share: float | None
    """Of the base's time. These four are of the mean step, which causes sum to, or of the whole
    recording if a run has no steps."""
    speed_up: float | None
    """The base's time over the target's, both in the three digits that are shown; null without
    steps, or if the runs are not comparable, as are the ends of the interval."""
    confidence: float
    """Of the interval: 0.95."""
    low_ns: int | None
    high_ns: int | None
    """The ends of the interval of the change."""
    low_share: float | None
    high_share: float | None
    """Of the base's time."""


class CauseChange(msgspec.Struct, frozen=True, kw_only=True):
    """One cause's part of the change; each column sums exactly to that of `TimeChange`."""

    cause: str
    label: str
    base_ns: int
    target_ns: int
    change_ns: int
    is_certain: bool = False
    """Whether it changed by more than chance explains, with 95 % confidence."""


class Scaling(msgspec.Struct, frozen=True, kw_only=True):
    """How a program scales to more devices."""

    base_devices: int
    target_devices: int
    is_of_ranks: bool
    """Whether ranks on the CPU are counted, not devices."""
    work_per_device: float
    """The target's samples per step and device, divided by the base's."""
    throughput_ratio: float
    """The target's samples per second, divided by the base's."""
    efficiency: float
    """The run with more devices: its samples per second and device, as a share of the other's."""
    low_efficiency: float | None
    high_efficiency: float | None
    """The ends of the interval that follows from that of the change; null if unknown."""
    lost: list[CauseChange]
    """By how much each cause of the run with more devices exceeds its part of a step that scales
    perfectly, the most first. `base_ns` is that part."""


class OperationChange(msgspec.Struct, frozen=True, kw_only=True):
    """A kernel, an operator or a module that was added or removed, or whose time has changed."""

    name: str
    target_name: str | None
    """The target's name, if it has another variant of the same kernel."""
    family: str | None
    """What a kernel computes; null for operators and modules."""
    status: OperationStatus
    base_ns: int | None
    target_ns: int | None
    change_ns: int
    base_count: float | None
    """Executions, or how many modules of a kind a row has."""
    target_count: float | None
    speed_up: float | None = None
    """Of modules: the base's time over the target's, both in the three digits that are shown; null
    without steps, and if one of the times is."""
    is_certain: bool | None = None
    """Of modules: whether the time changed by more than chance explains, with 95 % confidence."""


class OperationChanges(msgspec.Struct, frozen=True, kw_only=True):
    """The largest changes first; changes below a thousandth of the base's time are left out."""

    is_device_time: bool
    """Time on the device, else own time on the host. That of modules is their own in both cases."""
    rows: list[OperationChange]
    truncated: int
    """How many changes are not listed."""


class PredictedSaving(msgspec.Struct, frozen=True, kw_only=True):
    """What a finding expects its remedy to save."""

    low_ns: int
    expected_ns: int
    high_ns: int
    basis: Basis


class FindingChange(msgspec.Struct, frozen=True, kw_only=True):
    """The change of one rule's finding."""

    rule_id: str
    title: str
    status: FindingStatus
    reason: str | None
    """Why it is unknown: the rule could not check one of the runs."""
    base_severity: Severity | None
    target_severity: Severity | None
    predicted: PredictedSaving | None
    """By the base's finding."""
    remaining: PredictedSaving | None
    """By the target's finding."""
    refines: str | None = None
    """The rule of the base's finding that it is a part of. Its time counts there."""
    causes: list[str]
    """The causes that hold what the base's finding claims."""
    achieved_ns: int | None
    """How much less time those causes take now, for any reason. What several findings claim is
    divided among them. Null if the finding claims no time, is a part of another one or still
    expects as much, or if the rule could not check the target."""
    is_in_range: bool | None
    """Whether that lies between the prediction's ends."""
    outcome: str = ""
    """What became of it, in a word: *Fixed*, or *Gone* if the step did not get faster."""
    summary: str = ""
    """What was predicted, achieved and is left, in words."""


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """Why the runs may not be comparable."""

    id: str
    message: str


class LossChange(msgspec.Struct, frozen=True, kw_only=True):
    """The loss of both runs over the later half of the steps that both logged."""

    tag: str
    first_step: int
    last_step: int
    base: float
    """Mean, as is the target's."""
    target: float
    change_share: float
    """Of the base's, as are the ends of the interval of 95 % confidence."""
    low_share: float
    high_share: float
    verdict: LossVerdict


class LoggedChange(msgspec.Struct, frozen=True, kw_only=True):
    """How the time per step changed without the profiler, by the scalars of both runs."""

    base_step_ns: int
    """Mean over usual intervals of the steps that both logged, as is the target's."""
    target_step_ns: int
    base_intervals: int
    target_intervals: int
    change_share: float
    """Of the base's time, as are the ends of the interval of 95 % confidence."""
    low_share: float
    high_share: float
    efficiency: tuple[float, float, float] | None
    """Scaling efficiency and the ends of its interval, if the verdict is `scaled`."""
    loss: LossChange | None
    """Null if the runs logged no loss of the same name over the same steps, or if their batches
    differ."""
    sentences: list[str]
    """All of this in words."""


class LineChange(msgspec.Struct, frozen=True, kw_only=True):
    """The change of what one line of the program holds at the peak; null where it holds nothing."""

    line: str | None
    """Null for memory from before the history, or from an unknown line."""
    base_bytes: int | None
    target_bytes: int | None
    change_bytes: int


class MemoryChanges(msgspec.Struct, frozen=True, kw_only=True):
    """How two memory snapshots differ. The largest changes come first."""

    base_allocated_bytes: int
    target_allocated_bytes: int
    base_reserved_bytes: int
    target_reserved_bytes: int
    rows: list[LineChange]
    truncated: int
    """How many changes are not listed."""


class ComparedTarget(msgspec.Struct, frozen=True, kw_only=True):
    """One run compared with the base."""

    run: ComparedRun
    verdict: Verdict
    headline: str
    """One sentence."""
    explanation: str | None = None
    """What grew, and what shrank, if the step did not get faster; or what a program keeps from one
    memory snapshot to the next; null otherwise."""
    per: Per
    change: TimeChange
    scaling: Scaling | None = None
    """If the verdict is `scaled`."""
    logged: LoggedChange | None = None
    """If both runs logged scalars."""
    causes: list[CauseChange]
    """The largest change first; empty if the runs are not comparable."""
    findings: list[FindingChange]
    """The base's in its order, then the target's new ones; empty if the runs are not comparable."""
    kernels: OperationChanges | None
    """Null on the CPU, if the files contain totals over more than the steps, or if the runs are
    not comparable."""
    operators: OperationChanges | None
    """Null if one of the profiles has none, or if the runs are not comparable."""
    modules: OperationChanges | None = None
    """Modules, named ranges or scopes by their own time: without those inside. What runs at the
    same time shares it, so all of them take no more than the step. Modules that differ only in
    their numbers are a row, but for one with more than half of what changed. Null if the runs have
    none in common, or if they are not comparable."""
    memory: MemoryChanges | None = None
    """Null unless both runs have a memory snapshot."""
    warnings: list[Difference]


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Any number of runs compared with one."""

    base: ComparedRun
    targets: list[ComparedTarget]
    scaling_course: list[str] = []
    """Where scaling breaks, in sentences; empty with fewer than three numbers of devices."""


class ComparisonDocument(msgspec.Struct, frozen=True, kw_only=True):
    """What `perfadvisor compare --format json` prints."""

    schema_version: int
    generator: Generator
    comparisons: list[Comparison]
    """One, or one for each run if the base contains several."""
    notes: list[str]
    """Which captures were chosen among several, had no counterpart or could not be read."""
