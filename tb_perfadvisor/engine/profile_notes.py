"""Notes on the profile itself: what it lacks, and how to record a better one."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from msgspec.structs import replace
from numpy.typing import NDArray

from tb_perfadvisor.engine.analysis import RankedFinding
from tb_perfadvisor.engine.recording_notes import recording_notes
from tb_perfadvisor.note import Note
from tb_perfadvisor.patterns import regex
from tb_perfadvisor.rules.evidence.compilation import log_in_short
from tb_perfadvisor.rules.evidence.tables import holders_in
from tb_perfadvisor.signals import Need, Signals, ranks_of
from tb_perfadvisor.signals.core.device import DeviceFacts
from tb_perfadvisor.signals.core.steps.steps import Steps, recorded_span
from tb_perfadvisor.signals.core.steps.windows import Side
from tb_perfadvisor.signals.recording.compile_log import compile_log, is_only_log
from tb_perfadvisor.signals.recording.hints import (
    MEMORY,
    OF_TENSORFLOW,
    SHAPES,
    STACKS,
    hint_for,
)
from tb_perfadvisor.signals.snapshots.course import Course, memory_course
from tb_perfadvisor.signals.steps.around_steps import after_step
from tb_perfadvisor.signals.work.roofline import MATRIX_FAMILIES
from tb_perfadvisor.signals.workload.fit import Hint, first_fitting
from tb_perfadvisor.signals.workload.workload import Part, workload
from tb_perfadvisor.trace import EventKind, Source, Trace
from tb_perfadvisor.trace.integer_groups import distinct, is_in
from tb_perfadvisor.trace.memory_snapshot import Action
from tb_perfadvisor.units import format_bytes, format_duration, format_share

FEW_STEPS = 3
"""With fewer than three steps, a single slow step dominates the mean."""
SKEW_NS = 1_000_000
"""NTP keeps clocks within a millisecond of each other inside a data center."""
# Names that readers use when at most the kind of the device is known.
_UNNAMED = frozenset({"", "GPU", "TPU"})

_UNKNOWN = -1
"""In columns of strings."""
_OPTIONS: tuple[tuple[str, Callable[[Trace], bool | None], str, tuple[Hint, ...]], ...] = (
    (
        "missing-shapes",
        lambda trace: _was_on(trace, trace.source.has_shapes, trace.operators.shapes),
        "Operator shapes and dtypes were not recorded, so the batch size, the precision of "
        "matmuls and how fast they could be are unknown.",
        SHAPES,
    ),
    (
        "missing-stacks",
        lambda trace: _was_on(
            trace, trace.source.has_stacks, trace.rows(EventKind.PYTHON), trace.operators.frame
        ),
        "Python stacks were not recorded, so findings cannot name a line of your code or what the "
        "host does between operators. They slow the host down: record them in a second profile.",
        (
            *STACKS,
            OF_TENSORFLOW,
        ),
    ),
    (
        "missing-memory",
        lambda trace: _was_on(trace, trace.source.has_memory, trace.memory.bytes),
        "Memory was not recorded, so its peak, growth and headroom are unknown.",
        MEMORY,
    ),
)


_FRONT_END = Note(
    "server-front-end",
    "error",
    "This is the front end of vLLM, which takes requests and returns tokens. The model runs in "
    "other processes, so this profile says nothing about its speed.",
    "Look at the profiles of the workers (rank0, …), which vLLM writes into the same directory. "
    "Pass --profiler-config.ignore_frontend=true to vllm serve to record only those.",
)


def profile_notes(signals: Signals, *, starts_up: bool = False) -> tuple[Note, ...]:
    """Notes on a profile: first those of its reader, last those on other workers' files."""
    if is_only_log(signals):
        return (*signals.trace.notes, _ONLY_LOG, *_on_other_workers(signals))
    if signals.device.index is None and workload(signals).has(Part.FRONT_END):
        return (*signals.trace.notes, _FRONT_END, *_on_other_workers(signals))
    return (
        *signals.trace.notes,
        *_on_steps(signals),
        *_on_compile_log(signals),
        *recording_notes(signals, starts_up=starts_up),
        *incomplete_step_notes(signals),
        *_on_clocks(signals),
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
    steps = signals.steps
    if len(steps) == 0 and len(signals.trace.events):
        reason = (
            "All steps of the profile are partial"
            if steps.excluded
            else "The profile has no step markers and no steps could be inferred"
        )
        notes.append(
            Note(
                "no-steps",
                "warning",
                f"{reason}, so it is analyzed as a whole and no number is per step.",
                hint_for(Need.STEPS, workload(signals)),
            )
        )
    elif 0 < len(steps) < FEW_STEPS:
        count = "One step is" if len(steps) == 1 else f"{len(steps)} steps are"
        notes.append(
            Note(
                "few-steps",
                "info",
                f"{count} analyzed: too few steps to tell signal from noise.",
                "Record at least five steps after warm-up.",
            )
        )
    notes += _on_kinds(steps)
    if steps.decided_by is Side.DEVICE and steps.linked_by_order:
        notes.append(
            Note(
                "linked-by-order",
                "info",
                f"The profile does not say which step launched which run of "
                f"{steps.linked_by_order}. It ran as often as it was called, so the runs belong "
                "to the calls in order.",
            )
        )
    if len(steps) and steps.is_inferred:
        notes.append(
            Note(
                "inferred-steps",
                "info",
                f"The profile has no step markers. Steps were inferred from {steps.source}.",
                hint_for(Need.STEPS, workload(signals)),
            )
        )
    return notes


def _on_kinds(steps: Steps) -> list[Note]:
    """Kinds of steps, in plain words."""
    if len(steps.kind_names) < 2:
        return []
    usual, other = (steps.duration_ns[steps.kind == kind] for kind in (0, 1))
    if not len(usual) or not len(other):
        return []
    usual_ns, other_ns = float(usual.mean()), float(other.mean())
    first, second = steps.kind_names
    if steps.period:
        cycle = format_duration((steps.period - 1) * usual_ns + other_ns)
        every = "second" if steps.period == 2 else f"{steps.period}th"
        if steps.period == 3:
            every = "third"
        message = (
            f"Every {every} step {_VERBS.get(second, 'takes longer')}: "
            f"{format_duration(other_ns)} instead of {format_duration(usual_ns)}. A cycle of "
            f"{steps.period} steps takes {cycle}."
        )
    else:
        message = (
            f"The steps are of two kinds: {len(usual)} ({first}) take {format_duration(usual_ns)} "
            f"on average, {len(other)} ({second}) take {format_duration(other_ns)}."
        )
    return [Note("step-kinds", "info", message)]


_VERBS = {"updates the parameters": "also updates the parameters"}


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
    facts = signals.device_facts
    if facts is not None and signals.options.device is None:
        notes += _on_identity(facts)
    return notes


def _on_identity(facts: DeviceFacts) -> list[Note]:
    """How the device was recognized, if the profile does not name it, or that it is unknown."""
    if facts.peaks is not None and facts.evidence:
        several = ""
        if facts.candidates:
            several = (
                f" Several devices are like this ({', '.join(facts.candidates)}): where they are "
                "similar, the slowest counts, and where they differ, nothing is assumed."
            )
        return [
            Note(
                "identified-device",
                "info",
                f"The profile does not name the device. It was recognized as {facts.name} by: "
                f"{facts.evidence}.{several}",
                _NAME_IT if facts.candidates else "",
            )
        ]
    if facts.peaks is not None:
        return []
    if facts.name in _UNNAMED:
        message = "The profile does not name the device"
    elif facts.evidence:
        message = f"The profile does not name the device, and shows only {facts.evidence}"
    else:
        message = f"The device {facts.name!r} is not in the hardware table"
    return [
        Note(
            "unknown-device",
            "info",
            f"{message}, so nothing is derived from its peak rates.",
            _NAME_IT,
        )
    ]


_NAME_IT = (
    'Name it, or one with the same rates: `perfadvisor analyze PATH --device "H100 SXM5 80GB"`, or '
    "`device` in the settings file."
)


def _was_on(trace: Trace, says: bool | None, *columns: NDArray[Any]) -> bool | None:
    """Whether something was recorded: it is there, or the file says so; else by the operators.

    None when unknown. Without operators, there is nothing that could be missing.
    """
    if any(bool((column != _UNKNOWN).any()) for column in columns):
        return True
    if says is not None or trace.source.framework != "pytorch":
        return says
    if len(trace.rows(EventKind.OPERATOR)) == 0:
        return None
    return False


def _on_options(signals: Signals) -> list[Note]:
    """What the profiler was told not to record, if the profile tells."""
    trace = signals.trace
    # A recorder's totals hold none of this, whatever was recorded, and an empty profile nothing.
    if trace.totals is not None or len(trace.events) == 0:
        return []
    if trace.source.named_by:
        return [
            Note(
                "named-by-rich",
                "info",
                "Times are of this recording. Shapes and source lines of its operators are those "
                f"of the same operators in {trace.source.named_by}, which recorded them.",
            )
        ]
    hints = ((option, first_fitting(option[3], workload(signals))) for option in _OPTIONS)
    return [
        Note(id_, "info", message, hint)
        for (id_, was_on, message, _), hint in hints
        if hint and was_on(trace) is False
    ]


_ONLY_LOG = Note(
    "compile-log",
    "info",
    "This is a log of torch.compile, not a profile: it shows what the compiler did, and nothing of "
    "the steps. Time between compilations is unexplained.",
    "Record the program with torch.profiler into the same directory. Then the report says what "
    "graph breaks and recompilations cost.",
)


def _on_compile_log(signals: Signals) -> list[Note]:
    """What the log beside a profile holds, or that those that lie there are of other runs."""
    logs = signals.run.compile_logs
    if not logs:
        return []
    log = compile_log(signals)
    if log is None:
        return [
            Note(
                "compile-log",
                "info",
                f"Beside the profile lies a log of torch.compile ({logs[0].path}), but of another "
                "process, so it was not used.",
                "Write the log of each run into its own directory.",
            )
        ]
    whose = "" if log.rank is None else f" of rank {log.rank}"
    message = f"torch.compile's log{whose} ({log.path}): {log_in_short(log)}."
    return [Note("compile-log", "info", message)]


_FREED_SHARE = 0.1
"""A step frees nearly all that it allocates, except for the optimizer's state in the first one."""
_WHOLE_STEPS = (
    "Start recording before the model is built, and take the snapshot after a few steps: "
    "torch.cuda.memory._record_memory_history(max_entries=1_000_000)."
)


def snapshot_notes(signals: Signals, findings: Sequence[RankedFinding]) -> list[Note]:
    """Say why there is no advice on a memory snapshot; empty if there is some."""
    course = memory_course(signals)
    if findings or course is None or not signals.trace.is_snapshot_only:
        return []
    peak = course.peak_allocated_bytes
    if not peak or not len(course.snapshot.events):
        return []
    allocated, freed = (_total(course, action) for action in (Action.ALLOCATE, Action.FREE))
    if freed < _FREED_SHARE * allocated:
        lines = [holder for holder in holders_in(course, course.peak) if holder.line is not None]
        most = f" ({format_bytes(lines[0].bytes)} of it at {lines[0].line})" if lines else ""
        return [
            Note(
                "history-without-steps",
                "info",
                f"The history allocates {format_bytes(allocated)}{most} and frees"
                f" {format_bytes(freed)}: it ends before the program's work. What a step keeps, and"
                " what could be freed, cannot be seen.",
                _WHOLE_STEPS,
            )
        ]
    earlier = course.allocations
    before = int(earlier.bytes[(earlier.since == 0) & (earlier.until > course.peak)].sum())
    return [
        Note(
            "memory-as-needed",
            "info",
            f"{format_bytes(before)} of the {format_bytes(peak)} at the peak"
            f" ({format_share(before / peak)}) was there before the history, such as weights. The"
            f" program adds {format_bytes(peak - before)} to it, and no check found a part of that"
            " which another way to compute would free.",
        )
    ]


def _total(course: Course, action: Action) -> int:
    """The sum of what was allocated, or freed, in the history."""
    places = course.places(action)
    return int(course.snapshot.events.size_bytes[course.rows[places]].sum())


COVERED_SHARE = 0.8
"""Inferred steps that cover less of the recording may not be the program's steps at all."""
_AFTER_SHARE = 0.01
"""Less than 1 % of the step is not worth a word."""

# Names of layers that multiply matrices, in the paths of TensorFlow's and JAX's operators.
_MULTIPLIES = regex(r"attention|dense|conv|matmul|einsum|dot_general|encoder|decoder|mlp", re.I)
_GRADIENTS = regex(r"gradient_tape|gradients/|transpose\(jvp|[Gg]rad(ient)?s?[/:]")


def incomplete_step_notes(signals: Signals) -> list[Note]:
    """What the used steps leave out."""
    return [*_on_coverage(signals), *_on_pieces(signals), *_on_what_follows(signals)]


def _on_coverage(signals: Signals) -> list[Note]:
    steps = signals.steps
    if not len(steps) or not (steps.is_inferred or steps.is_range):
        return []
    if signals.trace.totals is not None:
        return []
    start_ns, end_ns = recorded_span(signals.trace, signals.device)
    recorded_ns = end_ns - start_ns
    # Steps that are excluded by name are steps as well.
    known_ns = steps.window_ns * (1 + len(steps.excluded) / len(steps))
    if known_ns >= COVERED_SHARE * recorded_ns:
        return []
    # A program that starts loads its model, and computes little.
    before_ns = steps.window_start_ns - start_ns
    kernels, events = signals.trace.rows(EventKind.KERNEL), signals.trace.events
    kernels = kernels[events.start_ns[kernels] < steps.window_start_ns]
    is_start_up = before_ns >= COVERED_SHARE * (recorded_ns - steps.window_ns)
    is_start_up &= signals.device.index is not None
    is_start_up &= 2 * int(events.duration_ns[kernels].sum()) < before_ns
    rest = "What runs in the rest is not analyzed."
    if is_start_up:
        rest = f"The {format_duration(before_ns)} before them are start-up, and are not analyzed."
    return [
        Note(
            "partly-covered",
            "info" if is_start_up else "warning",
            f"The steps that were found cover {format_duration(steps.window_ns)} of the "
            f"{format_duration(recorded_ns)} that were recorded "
            f"({format_share(steps.window_ns / recorded_ns)}). {rest}",
            "Mark the steps of your program, and record only these.",
        )
    ]


def _on_pieces(signals: Signals) -> list[Note]:
    """That a step has no product, although the names of its operators are those of a model."""
    trace, steps, events = signals.trace, signals.steps, signals.trace.events
    if not len(steps) or signals.device.index is None or trace.totals is not None:
        return []
    if trace.source.framework not in ("tensorflow", "jax"):
        return []
    rows = steps.own(trace.rows(EventKind.KERNEL))
    family = trace.by_event(trace.kernels.row, trace.kernels.family, 0)[rows]
    if is_in(family, MATRIX_FAMILIES).any():
        return []
    launch = events.launched_by[rows]
    operator = signals.launching_operator[launch[launch >= 0]]
    names = {*trace.texts(distinct(events.name[operator[operator >= 0]]))}
    op = trace.operations(rows)
    names |= {*trace.texts(distinct(trace.hlo.path[distinct(op[op >= 0])]))}
    layer = next((name for name in sorted(names) if _MULTIPLIES.search(name)), "")
    if not layer or not any(_GRADIENTS.search(name) for name in names):
        return []
    return [
        Note(
            "piece-of-a-step",
            "error",
            "The step runs no matrix product, although its operators are those of a model that is "
            f"trained ({layer}). The recording holds a piece of a step, so its time and its "
            "findings say little about the program.",
            "Record several whole steps, and stop the profiler after the device has finished.",
        )
    ]


def _on_what_follows(signals: Signals) -> list[Note]:
    work = after_step(signals)
    time_ns = sum(entry.time_ns for entry in work)
    if time_ns < _AFTER_SHARE * signals.steps.window_ns or not time_ns:
        return []
    what = ", ".join(f"{entry.what}, {format_duration(entry.time_ns)}" for entry in work)
    return [Note("after-the-step", "info", f"After the step: {what}. It is not part of the step.")]
