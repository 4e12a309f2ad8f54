"""Everything that a comparison needs to know about one run.

A comparison is a pure function of these facts. So the runs need not be in memory at the same time,
and TensorBoard can compare analyzed runs without reading their profiles again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

import msgspec
import numpy as np

from tb_perfadvisor.comparison.memory_changes import MemoryFacts, memory_facts
from tb_perfadvisor.contract import model
from tb_perfadvisor.contract.names import report_name
from tb_perfadvisor.engine.analysis import Analysis, RankedFinding
from tb_perfadvisor.rules.finding import Saving
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.core.placement import computes
from tb_perfadvisor.signals.core.precision import width_of_types
from tb_perfadvisor.signals.efficiency.costliest_work import module_times
from tb_perfadvisor.signals.work.matrix_work import batch_size
from tb_perfadvisor.trace import Precision
from tb_perfadvisor.trace.names import without_number

MAX_NAMES = 1_000
"""The first name left out takes less than a thousandth of all time."""
MAX_SHAPES = 200
"""The costliest operators with their shapes: enough to recognize another batch size or model."""
_WIDTHS = {
    Precision.BITS_8: "8",
    Precision.BITS_16: "16",
    Precision.BITS_32: "32",
    Precision.BITS_64: "64",
    Precision.UNKNOWN: "unknown",
}


class OperationTime(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """All executions of a kernel or an operator in the used window."""

    name: str
    count: int
    total_ns: int
    family: str | None = None


class OperationTimes(msgspec.Struct, frozen=True, kw_only=True):
    """Kernels or operators, the costliest first."""

    is_device_time: bool
    rows: list[OperationTime]


class ModuleTime(msgspec.Struct, frozen=True, kw_only=True):
    """A module's work without that of the modules inside it."""

    path: tuple[str, ...]
    """Names of modules, the outermost first; empty for work outside of all that are known."""
    step_ns: list[int]
    """In each used step; a single sum without steps."""


class ModuleTimes(msgspec.Struct, frozen=True, kw_only=True):
    """Modules, the costliest first. In each step, they take no more than the step."""

    is_device_time: bool
    rows: list[ModuleTime]


class ShapeUse(msgspec.Struct, frozen=True, kw_only=True):
    """Executions of an operator on inputs of the same shapes."""

    name: str
    shapes: str
    total_ns: int


class SavingFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A finding's saving, and the causes of the time it claims; totals over the used window."""

    low_ns: int
    expected_ns: int
    high_ns: int
    basis: model.Basis
    claims: dict[str, int]
    """By cause."""


class FindingFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One finding."""

    rule_id: str
    title: str
    severity: model.Severity
    saving: SavingFacts | None
    refines: str | None = None
    """The rule whose finding it is nested under."""


class OutcomeFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a rule."""

    status: model.Status
    reason: str | None


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """The program, the machine and the recording; null is unknown."""

    framework: str
    version: str
    """Of the recorder, as far as the file tells."""
    device: str | None
    """Empty if the profile does not name it; null on the CPU."""
    devices_used: int | None
    """None if the events of the device are missing."""
    world_size: int | None
    workers: int
    batch: int | None
    parallelism: list[str]
    """How the work is spread, as in the report's workload."""
    precision: dict[str, float] | None
    """Shares of compute time by width, of the operators' own time on the CPU."""
    has_shapes: bool | None
    has_stacks: bool | None
    has_memory: bool | None


class RunFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One run, as the reference worker saw it. Times are totals over the used window."""

    id: str
    name: str
    session: str
    is_synthetic: bool
    is_truncated: bool
    """Whether a file is truncated."""
    not_to_act_on: str = ""
    """Why the recording is none to act on; empty if it is."""
    setup: Setup
    step_source: str
    step_ns: list[int]
    """Each used step; empty when none are known."""
    step_kinds: list[str] = []
    """The kind of each used step; empty if all are alike."""
    window_ns: int
    causes: dict[str, int]
    """By cause; they sum exactly to the window."""
    cause_step_ns: dict[str, list[int]] = {}
    """By cause, in each used step; empty if unknown."""
    device_compute_share: float | None
    device_busy_share: float | None
    sixteen_bit_share: float | None
    input_wait_share: float | None
    exposed_communication_share: float | None
    between_steps_share: float | None
    mfu: float | None
    tokens_per_s: float | None
    samples_per_s: float | None
    """Of one rank, like the tokens."""
    peak_allocated_bytes: int | None
    findings: list[FindingFacts]
    outcomes: dict[str, OutcomeFacts]
    """By rule."""
    kernels: OperationTimes | None
    operators: OperationTimes | None
    shapes: list[ShapeUse]
    modules: ModuleTimes | None = None
    """None if no module or named range is known."""
    recorded: model.RecordedInfo | None = None
    memory: MemoryFacts | None = None

    @property
    def steps(self) -> int:
        """Used steps."""
        return len(self.step_ns)

    @property
    def median_step_ns(self) -> float | None:
        """None without steps."""
        return float(np.median(self.step_ns)) if self.step_ns else None

    @property
    def step_time_ns(self) -> int | None:
        """The mean step; None without steps."""
        return round(self.window_ns / self.steps) if self.step_ns else None


def of_first_steps(facts: RunFacts, count: int) -> RunFacts:
    """The times of the first steps only, if the causes of each step are known."""
    if not facts.cause_step_ns or count == facts.steps:
        return facts
    causes = {cause: sum(times[:count]) for cause, times in facts.cause_step_ns.items()}
    return msgspec.structs.replace(
        facts,
        step_ns=facts.step_ns[:count],
        step_kinds=facts.step_kinds[:count],
        cause_step_ns={cause: times[:count] for cause, times in facts.cause_step_ns.items()},
        causes=causes,
        window_ns=sum(causes.values()),
    )


def make_facts(analysis: Analysis, report: model.Report) -> RunFacts:
    """The facts of an analyzed run."""
    signals, overview = analysis.signals, report.overview
    return RunFacts(
        id=report.id,
        name=report_name(report),
        session=report.session,
        is_synthetic=report.is_synthetic,
        is_truncated=any(note.id == "truncated-file" for note in report.notes),
        not_to_act_on=report.trust.reasons[0].in_short
        if report.trust.level == "do not act"
        else "",
        setup=_setup(report, signals),
        step_source=report.steps.source,
        step_ns=signals.steps.duration_ns.tolist(),
        step_kinds=_step_kinds(signals),
        window_ns=overview.window_ns,
        causes={part.cause: part.total_ns for part in overview.breakdown},
        cause_step_ns={
            cause.value: times.tolist()
            for cause, times in signals.attribution.step_total_ns.items()
            if len(times) and times.any()
        },
        device_compute_share=overview.device_compute_share,
        device_busy_share=overview.device_busy_share,
        sixteen_bit_share=overview.sixteen_bit_share,
        input_wait_share=overview.input_wait_share,
        exposed_communication_share=overview.exposed_communication_share,
        between_steps_share=overview.between_steps_share,
        mfu=overview.mfu,
        tokens_per_s=overview.tokens_per_s,
        samples_per_s=overview.samples_per_s,
        peak_allocated_bytes=overview.memory.peak_allocated_bytes if overview.memory else None,
        findings=[_finding(ranked, signals) for ranked in analysis.findings],
        outcomes={
            outcome.rule.id: OutcomeFacts(status=outcome.status, reason=outcome.reason)
            for outcome in analysis.outcomes
        },
        kernels=_kernels(signals),
        operators=_operators(signals),
        shapes=_shapes(signals),
        modules=_modules(signals),
        recorded=report.recorded,
        memory=memory_facts(signals),
    )


def _step_kinds(signals: Signals) -> list[str]:
    steps = signals.steps
    if len(set(steps.kind.tolist())) < 2:
        return []
    return [steps.kind_names[kind] for kind in steps.kind.tolist()]


def _setup(report: model.Report, signals: Signals) -> Setup:
    source, device = signals.trace.source, report.workers[report.reference_worker].device
    return Setup(
        framework=report.framework,
        version=(
            source.producer
            if source.version in source.producer
            else f"{source.producer} {source.version}".strip()
        ),
        device=device.name if device else None,
        devices_used=device.used if device else 0,
        world_size=report.world_size,
        workers=len(report.workers),
        batch=batch_size(signals),
        parallelism=report.workload.parallelism,
        precision=report.overview.precision or _host_precision(signals),
        has_shapes=source.has_shapes,
        has_stacks=source.has_stacks,
        has_memory=source.has_memory,
    )


def _host_precision(signals: Signals) -> dict[str, float] | None:
    """On the CPU: shares of the operators' own time by width; None when unknown."""
    if signals.device.index is not None:
        return None
    trace, operators = signals.trace, signals.operators
    time_ns: dict[Precision, int] = defaultdict(int)
    for name, dtypes, total in zip(
        operators.name.tolist(), operators.dtypes.tolist(), operators.self_ns.tolist(), strict=True
    ):
        if dtypes >= 0 and computes(trace.strings[name]):
            time_ns[width_of_types(trace.strings[dtypes])] += total
    whole = sum(time_ns.values())
    if not whole or set(time_ns) == {Precision.UNKNOWN}:
        return None
    return {text: time_ns[width] / whole for width, text in _WIDTHS.items()}


def _finding(ranked: RankedFinding, signals: Signals) -> FindingFacts:
    saving = ranked.finding.saving
    return FindingFacts(
        rule_id=ranked.rule.id,
        title=ranked.rule.title,
        severity=ranked.severity,
        saving=_saving(saving, signals) if saving is not None else None,
        refines=ranked.refines,
    )


def _saving(saving: Saving, signals: Signals) -> SavingFacts:
    claims = signals.attribution.within_ns(saving.claims)
    return SavingFacts(
        low_ns=saving.low_ns,
        expected_ns=saving.expected_ns,
        high_ns=saving.high_ns,
        basis=saving.basis,
        claims={cause.value: claimed for cause, claimed in claims.items() if claimed},
    )


def _kernels(signals: Signals) -> OperationTimes | None:
    """None on the CPU, and if the recorder's totals cover more than the used window."""
    if signals.device.index is None or signals.trace.totals is not None:
        return None
    is_xla = signals.trace.source.framework == "jax" or len(signals.trace.hlo_events.row) > 0
    return _merged(
        (
            OperationTime(
                name=without_number(kernel.name) if is_xla else kernel.name,
                count=kernel.count,
                total_ns=kernel.total_ns,
                family=kernel.family,
            )
            for kernel in signals.kernels
        ),
        is_device_time=True,
    )


def _operators(signals: Signals) -> OperationTimes | None:
    """None without operators. With a device, the time of the kernels that they launched."""
    trace, operators = signals.trace, signals.operators
    on_device = signals.device.index is not None
    times = operators.device_ns if on_device else operators.self_ns
    if trace.totals is not None or not times.any():
        return None
    is_xla = trace.source.framework == "jax"
    names = [trace.strings[index] for index in operators.name.tolist()]
    return _merged(
        (
            OperationTime(
                name=without_number(name) if is_xla else name, count=count, total_ns=total
            )
            for name, count, total in zip(
                names, operators.count.tolist(), times.tolist(), strict=True
            )
            if total
        ),
        is_device_time=on_device,
    )


def _modules(signals: Signals) -> ModuleTimes | None:
    found = module_times(signals)
    if found is None:
        return None
    order = np.argsort(-found.step_ns.sum(axis=1), kind="stable")[:MAX_NAMES].tolist()
    rows = [ModuleTime(path=found.paths[at], step_ns=found.step_ns[at].tolist()) for at in order]
    return ModuleTimes(is_device_time=not signals.device.is_host_only, rows=rows)


def _merged(times: Iterable[OperationTime], *, is_device_time: bool) -> OperationTimes:
    """One row per name, the costliest first."""
    merged: dict[str, OperationTime] = {}
    for time in times:
        known = merged.get(time.name)
        merged[time.name] = (
            time
            if known is None
            else msgspec.structs.replace(
                known, count=known.count + time.count, total_ns=known.total_ns + time.total_ns
            )
        )
    rows = sorted(merged.values(), key=lambda row: (-row.total_ns, row.name))
    return OperationTimes(is_device_time=is_device_time, rows=rows[:MAX_NAMES])


def _shapes(signals: Signals) -> list[ShapeUse]:
    """The costliest operators with their shapes."""
    trace, operators = signals.trace, signals.operators
    times = operators.device_ns if operators.device_ns.any() else operators.self_ns
    spent: dict[tuple[int, int], int] = defaultdict(int)
    known = np.flatnonzero((operators.shapes >= 0) & (times > 0))
    for name, shapes, total in zip(
        operators.name[known].tolist(),
        operators.shapes[known].tolist(),
        times[known].tolist(),
        strict=True,
    ):
        spent[name, shapes] += total
    return [
        ShapeUse(name=trace.strings[name], shapes=trace.strings[shapes], total_ns=total)
        for (name, shapes), total in _costliest(spent)
    ]


def _costliest(spent: Mapping[tuple[int, int], int]) -> list[tuple[tuple[int, int], int]]:
    return sorted(spent.items(), key=lambda item: (-item[1], item[0]))[:MAX_SHAPES]
