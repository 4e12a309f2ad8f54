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
"""With fewer than three steps, a single slow step dominates the mean."""
LOST_SHARE = 0.05
"""A complete recording has a kernel for every launch in its steps; a few percent may be missing at
its edges."""
COMPILING_SHARE = 0.05
"""If 5 % of the analyzed time is warm-up, everything said about the rest is off by as much."""
RECORDING_SHARE = 0.05
"""Less than 5 % is within the usual variation of steps."""
SKEW_NS = 1_000_000
"""NTP keeps clocks within a millisecond of each other inside a data center."""
# Names that readers use when at most the kind of the device is known.
_UNNAMED = frozenset({"", "GPU", "TPU"})

_CUPTI = (
    "There are three common causes: the profiling library (CUPTI, roctracer) was not found; "
    "profiling is restricted to administrators (NVreg_RestrictProfilingToAdminUsers=0 lifts this); "
    "or another profiler is attached. In PyTorch, also pass ProfilerActivity.CUDA."
)

_WARM_UP = {
    "pytorch": "Skip the first steps: pass schedule=torch.profiler.schedule(wait=1, "
    "warmup=3, active=5).",
    "tensorflow": "Profile later steps: use TensorBoard(profile_batch=(10, 15)), or start "
    "the profiler after a few steps.",
    "jax": "Run a few steps before jax.profiler.start_trace.",
    "unknown": "Run a few steps before recording.",
}
_UNKNOWN = -1
"""In columns of strings."""
_OPTIONS: tuple[tuple[str, Callable[[Trace], bool | None], str, dict[str, str]], ...] = (
    (
        "missing-shapes",
        lambda trace: _was_on(trace, trace.source.has_shapes, trace.operators.shapes),
        "Operator shapes and dtypes were not recorded, so the batch size, the precision of "
        "matmuls and how fast they could be are unknown.",
        {"pytorch": "Record with record_shapes=True."},
    ),
    (
        "missing-stacks",
        lambda trace: _was_on(
            trace, trace.source.has_stacks, trace.rows(EventKind.PYTHON), trace.operators.frame
        ),
        "Python stacks were not recorded, so findings cannot name a line of your code or what the "
        "host does between operators.",
        {
            "pytorch": "Record a second profile with with_stack=True; it slows the host down.",
            "tensorflow": "Record a second profile with tf.profiler.experimental.ProfilerOptions("
            "python_tracer_level=1); it slows the host down.",
        },
    ),
    (
        "missing-memory",
        lambda trace: _was_on(trace, trace.source.has_memory, trace.memory.bytes),
        "Memory was not recorded, so its peak, growth and headroom are unknown.",
        {"pytorch": "Record with profile_memory=True."},
    ),
)


def profile_notes(signals: Signals) -> tuple[Note, ...]:
    """Notes on a profile: first those of its reader, last those on other workers' files."""
    return (
        *signals.trace.notes,
        *_on_steps(signals),
        *_on_events(signals),
        *_on_device(signals),
        *_on_options(signals),
        *_on_other_workers(signals),
    )


def _on_other_workers(signals: Signals) -> list[Note]:
    """Problems with the files of the other workers, one note per kind of problem."""
    ranks = ranks_of(signals)
    by_id: dict[str, list[tuple[str, Note]]] = {}
    for worker, (source, summary) in enumerate(zip(ranks.sources, ranks.summaries, strict=True)):
        if worker != signals.worker:
            for note in summary.notes:
                by_id.setdefault(note.id, []).append((source.path, note))
    notes = []
    for notes_of_files in by_id.values():
        path, first = notes_of_files[0]
        more_files = len({path for path, _ in notes_of_files}) - 1
        more = f" (and {more_files} more)" if more_files else ""
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
                "The profile has no step markers and no steps could be inferred, so it is "
                "analyzed as a whole and no number is per step.",
                remedy_for(Need.STEPS, framework),
            )
        )
    elif len(steps) < FEW_STEPS:
        count = "One step is" if len(steps) == 1 else f"{len(steps)} steps are"
        notes.append(
            Note(
                "few-steps",
                "info",
                f"{count} analyzed: too few steps to tell signal from noise.",
                "Record at least five steps after warm-up.",
            )
        )
    if len(steps) and steps.is_inferred:
        notes.append(
            Note(
                "inferred-steps",
                "info",
                f"The profile has no step markers. Steps were inferred from {steps.source}.",
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
                f"{lost:,} of {launched:,} kernel launches in the steps "
                f"({format_share(lost / launched)}) have no kernel. Events were dropped, so the "
                "device did more than the profile shows.",
                "Record fewer steps, with fewer options (no stacks, no shapes), so that the "
                "profiler's buffers do not overflow.",
            )
        )
    compile_ns = compiling(signals)
    window_ns = signals.attribution.window_ns
    if compile_ns > COMPILING_SHARE * window_ns:
        notes.append(
            Note(
                "compile-in-window",
                "warning",
                f"The program spends {format_duration(compile_ns)} "
                f"({format_share(compile_ns / window_ns)}) of the analyzed time compiling or "
                "importing. This is warm-up and says little about later steps.",
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
    recorded = f" with {', '.join(options)}" if options else ""
    return [
        Note(
            "profiler-overhead",
            "info",
            f"Recording{recorded} takes an estimated {format_duration(cost_ns)} "
            f"({format_share(cost_ns / window_ns)}) of the analyzed time on the threads that run "
            "the steps. Without a profiler, the host is that much faster.",
            "Record once without stacks, shapes and memory before acting on host findings.",
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
    fastest, slowest = (_rank_name(ranks.sources[worker]) for worker in (last, first))
    return [
        Note(
            "clock-skew",
            "info",
            f"The ranks' clocks differ by up to {format_duration(apart_ns)} ({fastest} is ahead "
            f"of {slowest}). They were aligned by the collectives that all ranks leave together.",
            "Synchronize the hosts' clocks (NTP, PTP) if you compare their logs.",
        )
    ]


def _rank_name(source: Source) -> str:
    return f"rank {source.rank}" if source.rank is not None else source.host or source.path


def _on_device(signals: Signals) -> list[Note]:
    notes = []
    if signals.device.is_missing:
        notes.append(
            Note(
                "no-device-events",
                "error",
                "The profile names a device but has no events from it. Either the program did not "
                "use the device, or its events were not recorded. Its time is unknown.",
                _CUPTI,
            )
        )
    facts = signals.device_facts
    if facts is not None and facts.peaks is None and facts.name in _UNNAMED:
        notes.append(
            Note(
                "unknown-device",
                "info",
                "The profile does not name the device, so nothing is derived from its peak rates.",
            )
        )
    elif facts is not None and facts.peaks is None:
        notes.append(
            Note(
                "unknown-device",
                "info",
                f"The device {facts.name!r} is not in the hardware table, so nothing is derived "
                "from its peak rates.",
                "Please send its name and data sheet to the maintainers.",
            )
        )
    return notes


def _was_on(trace: Trace, says: bool | None, *columns: NDArray[Any]) -> bool | None:
    """Whether something was recorded: as the file says, or else as PyTorch's operators show.

    None when unknown. Without operators, there is nothing that could be missing.
    """
    if says is not None or trace.source.framework != "pytorch":
        return says
    if len(trace.rows(EventKind.OPERATOR)) == 0:
        return None
    return any(bool((column != _UNKNOWN).any()) for column in columns)


def _on_options(signals: Signals) -> list[Note]:
    """What the profiler was told not to record, if the profile tells."""
    trace = signals.trace
    if trace.totals is not None:
        return []  # a recorder's totals hold none of this, whatever was recorded
    framework = trace.source.framework
    return [
        Note(id_, "info", message, remedies[framework])
        for id_, was_on, message, remedies in _OPTIONS
        if framework in remedies and was_on(trace) is False
    ]
