"""Notes on the profile itself: what it lacks, and how to record a better one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace
from numpy.typing import NDArray

from tb_perfadvisor.signals import Need, Signals, ranks_of
from tb_perfadvisor.signals.recording.completeness import compiling, lost_launches
from tb_perfadvisor.signals.recording.needs import remedy_for
from tb_perfadvisor.signals.recording.profiler_overhead import profiler_overhead
from tb_perfadvisor.trace import EventKind, Note, Source, Trace
from tb_perfadvisor.trace.intervals import single
from tb_perfadvisor.units import format_duration, format_share

FEW_STEPS = 3
"""Below three steps one slow step decides the mean."""
LOST_SHARE = 0.05
"""Complete recordings have an event for every kernel launch of their steps; a few in a hundred may
be missing at the edges."""
COMPILING_SHARE = 0.05
"""Where a twentieth of the window is warm-up, what it says of the rest is off by as much."""
RECORDING_SHARE = 0.05
"""Below a twentieth it is within what steps vary by."""
SKEW_NS = 1_000_000
"""Clocks that NTP keeps are within a millisecond in one data center."""
# What readers call a device of which they know the kind at most.
_UNNAMED = frozenset({"", "GPU", "TPU"})

_CUPTI = (
    "Three usual causes: the profiling library (CUPTI, roctracer) is not found; profiling is "
    "restricted to administrators (NVreg_RestrictProfilingToAdminUsers=0 lifts it); another "
    "profiler is attached. In PyTorch, also pass ProfilerActivity.CUDA."
)

_WARM_UP = {
    "pytorch": "Let the profiler skip the first steps: schedule=torch.profiler.schedule(wait=1, "
    "warmup=3, active=5).",
    "tensorflow": "Profile later steps: TensorBoard(profile_batch=(10, 15)), or start the "
    "profiler after some steps.",
    "jax": "Run a few steps before jax.profiler.start_trace.",
    "unknown": "Run some steps before recording.",
}
_UNKNOWN = -1
"""In columns of strings."""
_OPTIONS: tuple[tuple[str, Callable[[Trace], bool | None], str, dict[str, str]], ...] = (
    (
        "missing-shapes",
        lambda trace: _was_on(trace, trace.source.has_shapes, trace.operators.shapes),
        "The shapes and types of the operators were not recorded: how fast a matmul could be, "
        "what it computes with and how large the batch is remain unknown.",
        {"pytorch": "Record with record_shapes=True."},
    ),
    (
        "missing-stacks",
        lambda trace: _was_on(
            trace, trace.source.has_stacks, trace.rows(EventKind.PYTHON), trace.operators.frame
        ),
        "Python frames were not recorded: no finding names a line of your code, nor what the "
        "host does between operators.",
        {
            "pytorch": "Record with with_stack=True, in a second profile: it slows the host.",
            "tensorflow": "Record with tf.profiler.experimental.ProfilerOptions("
            "python_tracer_level=1), in a second profile: it slows the host.",
        },
    ),
    (
        "missing-memory",
        lambda trace: _was_on(trace, trace.source.has_memory, trace.memory.bytes),
        "Memory was not recorded: nothing is said of its peak, of growth or of room.",
        {"pytorch": "Record with profile_memory=True."},
    ),
)


def profile_notes(signals: Signals) -> tuple[Note, ...]:
    """Notes on one worker's profile, its reader's own first."""
    return (
        *signals.trace.notes,
        *_on_steps(signals),
        *_on_events(signals),
        *_on_device(signals),
        *_on_options(signals),
        *_of_others(signals),
    )


def _of_others(signals: Signals) -> list[Note]:
    """What is wrong with the files of the other workers, a note for each kind of trouble."""
    ranks = ranks_of(signals)
    by_id: dict[str, list[tuple[str, Note]]] = {}
    for worker, (source, summary) in enumerate(zip(ranks.sources, ranks.summaries, strict=True)):
        if worker != signals.worker:
            for note in summary.notes:
                by_id.setdefault(note.id, []).append((source.path, note))
    notes = []
    for found in by_id.values():
        path, first = found[0]
        others = len({path for path, _ in found}) - 1
        more = f" (and {others} more)" if others else ""
        notes.append(replace(first, message=f"{path}{more}: {first.message}"))
    return notes


def _on_steps(signals: Signals) -> list[Note]:
    notes = []
    steps, framework = signals.steps, signals.trace.source.framework
    if len(steps) == 0:
        notes.append(
            Note(
                "no-steps",
                "warning",
                "The profile marks no steps and none can be inferred: the whole of it is "
                "analyzed as one, and no figure is per step.",
                remedy_for(Need.STEPS, framework),
            )
        )
    elif len(steps) < FEW_STEPS:
        count = "One step is" if len(steps) == 1 else f"{len(steps)} steps are"
        notes.append(
            Note(
                "few-steps",
                "info",
                f"{count} used: too few to tell the usual from the chance.",
                "Record five steps or more after warm-up.",
            )
        )
    if len(steps) and steps.is_inferred:
        notes.append(
            Note(
                "inferred-steps",
                "info",
                f"The profile marks no steps; they are inferred from {steps.source}.",
                remedy_for(Need.STEPS, framework),
            )
        )
    return notes


def _on_events(signals: Signals) -> list[Note]:
    notes = []
    lost, launched = lost_launches(signals)
    if lost > LOST_SHARE * launched:
        notes.append(
            Note(
                "dropped-events",
                "warning",
                f"{lost:,} of {launched:,} kernel launches in the steps have no kernel: events "
                f"were dropped ({format_share(lost / launched)}), and the device did more than "
                "the profile shows.",
                "Record fewer steps at a time, and with fewer options (no stacks, no shapes), so "
                "that the profiler's buffers hold them.",
            )
        )
    compile_ns = compiling(signals)
    window_ns = signals.attribution.window_ns
    if compile_ns > COMPILING_SHARE * window_ns:
        notes.append(
            Note(
                "compile-in-window",
                "warning",
                f"The program compiles or imports for {format_duration(compile_ns)} "
                f"({format_share(compile_ns / window_ns)}) of what is analyzed: that is warm-up, "
                "and says little of the steps to come.",
                _WARM_UP.get(signals.trace.source.framework, _WARM_UP["unknown"]),
            )
        )
    return [*notes, *_on_recording(signals), *_on_clocks(signals)]


def _on_recording(signals: Signals) -> list[Note]:
    window = signals.attribution
    whole = single(window.window_start_ns, window.window_end_ns)
    cost_ns, window_ns = profiler_overhead(signals).within_ns(whole), window.window_ns
    if cost_ns <= RECORDING_SHARE * window_ns or signals.trace.totals is not None:
        return []
    options = profiler_overhead(signals).options
    on = f" with {', '.join(options)}" if options else ""
    return [
        Note(
            "profiler-overhead",
            "info",
            f"Recording{on} is estimated to take {format_duration(cost_ns)} "
            f"({format_share(cost_ns / window_ns)}) of what is analyzed, on the threads that run "
            "the steps: without a profiler the host is that much faster.",
            "Record once without stacks, shapes and memory before acting on what the host does.",
        )
    ]


def _on_clocks(signals: Signals) -> list[Note]:
    ranks = ranks_of(signals)
    skew = ranks.clocks.skew_ns
    if not ranks.clocks.skew_is_known:
        return []
    first, last = int(skew.argmin()), int(skew.argmax())
    apart_ns = int(skew[last] - skew[first])
    if apart_ns < SKEW_NS:
        return []
    ahead, behind = (_named(ranks.sources[one]) for one in (last, first))
    return [
        Note(
            "clock-skew",
            "info",
            f"The clocks of the ranks are up to {format_duration(apart_ns)} apart ({ahead} is "
            f"ahead of {behind}); they are aligned on the collectives that ranks leave together.",
            "Keep the hosts' clocks together (NTP, PTP) where logs of them are compared.",
        )
    ]


def _named(source: Source) -> str:
    return f"rank {source.rank}" if source.rank is not None else source.host or source.path


def _on_device(signals: Signals) -> list[Note]:
    notes = []
    if signals.device.is_missing:
        notes.append(
            Note(
                "no-device-events",
                "error",
                "The profile names a device but has no events of it: the program did not use it, "
                "or they were not recorded. Nothing can be said of the device's time.",
                _CUPTI,
            )
        )
    facts = signals.device_facts
    if facts is not None and facts.peaks is None and facts.name in _UNNAMED:
        notes.append(
            Note(
                "unknown-device",
                "info",
                "The profile does not say what the device is: nothing is claimed from its peaks.",
            )
        )
    elif facts is not None and facts.peaks is None:
        notes.append(
            Note(
                "unknown-device",
                "info",
                f"The device {facts.name!r} is not in the hardware table: nothing is claimed from "
                "peaks.",
                "Tell the maintainers its name, with its data sheet.",
            )
        )
    return notes


def _was_on(trace: Trace, says: bool | None, *columns: NDArray[Any]) -> bool | None:
    """Whether something was recorded: as the file says, else as PyTorch's operators show it.

    Without operators there is nothing that it could be missed on.
    """
    if says is not None or trace.source.framework != "pytorch":
        return says
    if len(trace.rows(EventKind.OPERATOR)) == 0:
        return None
    return any(bool((column != _UNKNOWN).any()) for column in columns)


def _on_options(signals: Signals) -> list[Note]:
    """What the recorder was told not to keep; where the profile does not say, nothing."""
    trace = signals.trace
    if trace.totals is not None:
        return []  # of sums nothing of all this is left, whatever was recorded
    framework = trace.source.framework
    return [
        Note(id_, "info", message, remedies[framework])
        for id_, was_on, message, remedies in _OPTIONS
        if framework in remedies and was_on(trace) is False
    ]
