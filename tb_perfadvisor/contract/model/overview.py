"""Where the time of a profile goes, and its key numbers."""

from __future__ import annotations

from typing import Literal

import msgspec


class ExcludedStep(msgspec.Struct, frozen=True, kw_only=True):
    """A step that is excluded from the analysis, and why."""

    index: int
    reason: str


class StepKindInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The used steps of one kind."""

    name: str
    used: int
    mean_ns: int
    median_ns: int


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
    decided_by: Literal["host", "device"] = "host"
    """Whose times these are: the host's, from marker to marker, or the device's, from the end of
    the work of one step to the end of that of the next."""
    host_ns: int | None = None
    """Mean time of a step on the host, from the end of the first step to the end of the last one.
    If it differs from `device_ns`, the host runs ahead, or catches up. Null if it is not known what
    the device did for which step."""
    device_ns: int | None = None
    """The same on the device, which is done with a step when the host and its work are."""
    kinds: list[StepKindInfo] = []
    """Kinds of steps that do different work; empty if all are alike."""
    cycle_steps: int | None = None
    """Number of steps after which the kinds repeat; null if they do not, or not regularly."""
    cycle_ns: int | None = None
    """Time of a cycle, from the means of its kinds."""


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
    peak_above_start_bytes: int | None = None
    """The most allocated since the recording began, if the files have no totals."""


class MemoryPartInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Memory of one kind."""

    label: str
    """parameters, optimizer state, other arguments, results, temporaries or constants."""
    bytes: int


class ProgramMemoryInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What the largest XLA program keeps in a device's memory, as its compiler planned it."""

    module: str
    total_bytes: int
    parts: list[MemoryPartInfo]
    """They add up to the total."""


class HostMemoryInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Host memory over the whole trace, of a program that ran on the CPU alone."""

    peak_allocated_bytes: int
    is_relative: bool
    """Counted from the start of the recording; more may have been allocated before."""


class CostlyWork(msgspec.Struct, frozen=True, kw_only=True):
    """All work of one name in the used window."""

    name: str
    """An operator, an operation of XLA, a kernel without either, a call on the host, or the cause
    of time in which none was recorded; in short."""
    is_idle: bool
    """Whether nothing runs on the device meanwhile, or no operator; false if there is neither."""
    place: str
    """Source line, module or annotation of its longest execution; empty if unknown."""
    count: int
    time_ns: int
    """Of the used window: its part of the time of its cause in the breakdown."""
    share: float
    achieved_share: float | None
    """What its work needs of its time, at rates that large, well-shaped kernels reach. Above 1 if
    caches or clever algorithms help; null if unknown, and for work too short to have a rate."""


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
    decode_floor_ns: int | None
    """The time to read the model's weights and the key-value cache, as far as they are known."""
    generated_per_s: float | None
    """Tokens that decoding generates per second, over all steps."""


class NextDoublingInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What a step would take on twice the devices: a model, no measurement."""

    ranks: int
    """Today."""
    low_step_ns: int
    high_step_ns: int
    low_efficiency: float
    """Throughput per device as a share of today's."""
    high_efficiency: float
    assumptions: list[str]


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
    program_memory: ProgramMemoryInfo | None
    """None if no XLA program tells."""
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
    costliest: list[CostlyWork] = []
    """What takes half of the used window, the costliest first; at most ten. Empty in documents of
    older versions."""
    serving: ServingInfo | None = None
    """None if the program annotates no steps that decode."""
    next_doubling: NextDoublingInfo | None = None
    """None without data-parallel collectives of known sizes."""

    @property
    def sixteen_bit_share(self) -> float | None:
        """The share of compute in 16 bits; None if no kernel's precision is known."""
        precision = self.precision
        return precision["16"] if precision and precision["unknown"] < 1 else None


class ReferenceInfo(msgspec.Struct, frozen=True, kw_only=True):
    """How a number compares with what has been published for such programs and devices."""

    verdict: Literal["good", "fair", "poor"]
    text: str
    """What has been published, in a few words."""
    source: str
    url: str


class KeyNumber(msgspec.Struct, frozen=True, kw_only=True):
    """A number for the top of a report. Numbers that do not apply to a program are not listed."""

    id: str
    label: str
    value: float | int | None
    """None if it is unknown."""
    unit: str
    """ns, bytes, share, count, samples/s or tokens/s."""
    of: str
    """What a share is of: `step time`. Otherwise empty."""
    notes: list[str]
    """Short remarks: `by count 99.1 %`."""
    share: float | None
    """The value as a part of a whole (0-1); None if it is none."""
    reference: ReferenceInfo | None = None
    """None where nothing has been published."""
    definition: str
