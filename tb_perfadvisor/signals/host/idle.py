"""Who holds up an idle device: annotations, owners, gaps that recur.

Each piece of idle time gets the innermost annotation around it, on the thread that launched the
device's next work, or else on the thread that runs the steps. What PyTorch annotates by itself
(optimizers, DistributedDataParallel, collectives) counts only outside of the user's annotations. An
annotation that spans a whole step names nothing, and neither do the profiler's own. TensorFlow and
JAX record what their runtimes do in the same way as the user's annotations. There, only what calls
a compiled function or an operator from outside can be the user's.

Several rules look at the same idle. This split decides once whose it is, so that general rules
(launching is slow, Python is slow) leave out what specific rules report.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

import numpy as np
from msgspec import Struct

from tb_perfadvisor.patterns import regex
from tb_perfadvisor.signals.core.causes import HOST_CAUSED, Cause
from tb_perfadvisor.signals.host.buffer_broadcasts import buffer_broadcasts
from tb_perfadvisor.signals.host.debugging import garbage_collections
from tb_perfadvisor.signals.host.host_callbacks import host_callbacks
from tb_perfadvisor.signals.host.optimizer_loops import optimizer_loop, zeroing_loop
from tb_perfadvisor.signals.host.preempted_calls import preempted_calls
from tb_perfadvisor.signals.launch.compiled_regions import graph_breaks
from tb_perfadvisor.signals.launch.delays import (
    LONGEST_LAUNCH_GAP_NS,
    SlowLaunch,
    argument_transfers,
    find_slow_launches,
    short_and_long_gaps,
)
from tb_perfadvisor.signals.launch.device_graphs import graph_captures, replay_preparation
from tb_perfadvisor.signals.launch.eager_calls import eager_calls
from tb_perfadvisor.signals.launch.first_calls import first_calls
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.trace import EventKind, Trace, TrackKind
from tb_perfadvisor.trace.integer_groups import distinct, is_in, unique_inverse
from tb_perfadvisor.trace.intervals import (
    EMPTY,
    Intervals,
    intersect,
    join,
    minus,
    overlap_ns,
    shared_ns,
    total_ns,
    union,
)
from tb_perfadvisor.trace.nesting import nearest, with_enclosing
from tb_perfadvisor.trace.tables import Int32, Int64

_WHOLE_SHARE = 0.9
"""An annotation of this share of a step marks the step."""
# torch/_inductor marks each call of a compiled graph with the graph's hash.
_SAYS_NOTHING = regex(r"^(?:PyTorch Profiler|ProfilerStep|\[profiler\]|## Call CompiledFxGraph )")
# torch/optim/optimizer.py, torch/nn/parallel/distributed.py, torch/csrc/distributed/c10d
_AUTOMATIC = regex(r"^(?:Optimizer\.(?:step|zero_grad)#|DistributedDataParallel\.|\w+ccl:)")
# XLA's clients and TensorFlow's executor trace their own functions.
_CALLS_PROGRAM = regex(r"^(?:PjitFunction\(|EagerExecute|FunctionRun|TFE_)")
_OF_RUNTIME = regex(
    r"^(?:PjitFunction\(|Eager|TFE_|FunctionRun|KernelAndDevice|Executor|ParallelFor)|::|=>"
)


class AnnotatedIdle(Struct, frozen=True):
    """Pieces of the idle time in the used window, in order; columns of shape (pieces,)."""

    start_ns: Int64
    end_ns: Int64
    gap: Int32
    """Row of `Attribution.idle`."""
    name: Int32
    """String: the innermost annotation; -1 for none."""

    def by_name(self, intervals: Intervals) -> list[tuple[int, int]]:
        """Names (-1 for none) and the idle time within some intervals, the longest first."""
        inside = overlap_ns(intervals, self.start_ns, self.end_ns)
        names, of_piece = unique_inverse(self.name)
        totals = np.bincount(of_piece, weights=inside, minlength=len(names)).astype(np.int64)
        order = np.argsort(-totals, kind="stable").tolist()
        return [(int(names[i]), int(totals[i])) for i in order if totals[i] > 0]


class _Segments(Struct, frozen=True):
    """Stretches with the same innermost annotation, by thread and then in order."""

    track: Int32
    start_ns: Int64
    end_ns: Int64
    name: Int32

    def name_at(self, track: Int32, at_ns: Int64) -> Int32:
        """The annotation on each track at each moment; -1 for none."""
        count = len(self.start_ns)
        if count == 0:
            return np.full(len(at_ns), -1, dtype=np.int32)
        # Sort segments and moments together; a segment that starts at a moment comes before it.
        is_moment = np.repeat((False, True), (count, len(at_ns)))
        tracks = np.concatenate((self.track, track))
        order = np.lexsort((is_moment, np.concatenate((self.start_ns, at_ns)), tracks))
        latest = np.maximum.accumulate(np.where(order < count, order, -1))
        slot = np.empty(len(at_ns), dtype=np.int64)
        of_moment = order >= count
        slot[order[of_moment] - count] = latest[of_moment]
        inside = (slot >= 0) & (self.track[slot] == track) & (at_ns < self.end_ns[slot])
        return np.where(inside, self.name[slot], -1).astype(np.int32)


@memoized
def annotated_idle(signals: Signals) -> AnnotatedIdle:
    """The idle time of the used window, by annotation."""
    trace, idle = signals.trace, signals.attribution.idle
    rows = _annotations(signals)
    names = distinct(trace.events.name[rows]).tolist()
    automatic = [name for name in names if _AUTOMATIC.match(trace.strings[name])]
    is_automatic = is_in(trace.events.name[rows], automatic)
    launch, step_track = idle.launch_row, signals.step_track
    thread = np.where(launch >= 0, trace.events.track[launch], step_track)
    by_user = _innermost(trace, rows[~is_automatic])
    by_framework = _innermost(trace, rows[is_automatic])
    start, gap = _split(idle.start_ns, idle.end_ns, thread, step_track, (by_user, by_framework))
    if not len(start):
        none = start.astype(np.int32)
        return AnnotatedIdle(start, start, none, none)
    is_last = np.append(gap[1:] != gap[:-1], True)
    end = np.where(is_last, idle.end_ns[gap], np.append(start[1:], 0))
    name = np.full(len(start), -1, dtype=np.int32)
    on_step_thread = np.full(len(start), step_track, dtype=np.int32)
    for segments in (by_user, by_framework):
        for track in (thread[gap], on_step_thread):
            is_open = np.flatnonzero(name < 0)
            name[is_open] = segments.name_at(track[is_open], start[is_open])
    return AnnotatedIdle(start_ns=start, end_ns=end, gap=gap.astype(np.int32), name=name)


def nameless(signals: Signals, intervals: Intervals) -> Intervals:
    """The part of some idle time that no annotation names."""
    pieces = annotated_idle(signals)
    unnamed = pieces.name < 0
    return intersect(intervals, union(pieces.start_ns[unnamed], pieces.end_ns[unnamed]))


def _split(
    start_ns: Int64,
    end_ns: Int64,
    thread: Int32,
    step_track: int,
    segments: tuple[_Segments, ...],
) -> tuple[Int64, Int64]:
    """Starts of pieces of gaps, cut where the annotation may change, with the gap of each.

    Gaps are in order; `thread` is the track of the thread that ended each of them. The annotations
    of `step_track` cut all gaps.
    """
    if not len(start_ns):
        return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
    bounds = np.concatenate([c for part in segments for c in (part.start_ns, part.end_ns)])
    track = np.concatenate([part.track for part in segments for _ in range(2)])
    slot = np.searchsorted(start_ns, bounds, side="right") - 1
    cuts = (slot >= 0) & (bounds < end_ns[slot]) & (bounds > start_ns[slot])
    cuts &= (track == step_track) | (track == thread[slot])
    starts = np.concatenate((start_ns, bounds[cuts]))
    _, first = np.unique(starts, return_index=True)
    of_gap = np.concatenate((np.arange(len(start_ns)), slot[cuts]))
    return starts[first], of_gap[first]


def _annotations(signals: Signals) -> Int32:
    """Rows of annotations on the host that may say something to the user."""
    trace, steps = signals.trace, signals.steps
    events, rows = trace.events, trace.rows(EventKind.ANNOTATION)
    step_ns = float(np.median(steps.duration_ns)) if len(steps) else float(steps.window_ns)
    duration = events.duration_ns[rows]
    rows = rows[(duration > 0) & (duration < _WHOLE_SHARE * step_ns)]
    rows = rows[trace.tracks.kind[events.track[rows]] == TrackKind.HOST_THREAD]
    names = distinct(events.name[rows]).tolist()
    if trace.source.framework in ("tensorflow", "jax"):
        rows = rows[is_in(rows, _around_programs(trace))]
        silent = [name for name in names if _OF_RUNTIME.search(trace.strings[name])]
    else:
        silent = [name for name in names if _SAYS_NOTHING.match(trace.strings[name])]
    said: Int32 = rows[~is_in(events.name[rows], silent)]
    return said


def _around_programs(trace: Trace) -> Int32:
    """Rows of the events around calls of compiled functions and operators."""
    events, rows = trace.events, trace.rows(EventKind.ANNOTATION, EventKind.RUNTIME)
    names = distinct(events.name[rows]).tolist()
    calls = [name for name in names if _CALLS_PROGRAM.match(trace.strings[name])]
    above = events.parent[rows[is_in(events.name[rows], calls)]]
    return np.flatnonzero(with_enclosing(events.parent, above[above >= 0])).astype(np.int32)


def _innermost(trace: Trace, rows: Int32) -> _Segments:
    """The innermost of some annotations at each moment of all threads."""
    events = trace.events
    is_annotation = np.zeros(len(events), dtype=np.bool_)
    is_annotation[rows] = True
    around = nearest(events.parent, is_annotation)
    parent = events.parent[rows]
    outer = np.where(parent >= 0, around[parent], -1)
    # After an annotation ends, the one around it goes on. Of several changes at one moment, the
    # last counts: ends come before starts, and inner annotations end first and start last.
    times = np.concatenate((events.end_ns[rows], events.start_ns[rows]))
    owner, track = np.concatenate((outer, rows)), np.tile(events.track[rows], 2)
    order = np.lexsort((np.concatenate((-rows, rows)), times, track))
    times, owner, track = times[order], owner[order], track[order]
    following = np.append(times[1:], times[-1:])
    is_segment = (owner >= 0) & (following > times) & (track == np.append(track[1:], -1))
    return _Segments(
        track[is_segment],
        times[is_segment],
        following[is_segment],
        events.name[owner[is_segment]],
    )


class IdleOwner(Enum):
    """A specific cause of idle, with a rule of its own, or a note if it happens only once."""

    PREEMPTION = "preemption"
    GRAPH_CAPTURE = "graph-capture"
    FIRST_CALL = "first-call"
    ARGUMENT_TRANSFER = "argument-transfer"
    SYNCHRONIZATION = "synchronization"
    BUFFER_BROADCAST = "buffer-broadcast"
    OPTIMIZER_LOOP = "optimizer-loop"
    ZEROING_LOOP = "zeroing-loop"
    EAGER_CALLS = "eager-calls"
    GRAPH_BREAKS = "graph-breaks"
    REPLAY_PREPARATION = "replay-preparation"
    HOST_CALLBACK = "host-callback"
    GARBAGE_COLLECTION = "garbage-collection"
    HOST_COLLECTIVE = "host-collective"
    SLOW_LAUNCH = "slow-launch"
    """Of what the others leave: before one kernel, the host takes far longer than before others."""


OVERRIDING = (
    IdleOwner.PREEMPTION,
    IdleOwner.GRAPH_CAPTURE,
    IdleOwner.FIRST_CALL,
    IdleOwner.ARGUMENT_TRANSFER,
    IdleOwner.SYNCHRONIZATION,
    IdleOwner.BUFFER_BROADCAST,
)
"""They hold whatever else the host was doing."""
LAUNCHING = (
    IdleOwner.OPTIMIZER_LOOP,
    IdleOwner.ZEROING_LOOP,
    IdleOwner.EAGER_CALLS,
    IdleOwner.GRAPH_BREAKS,
    IdleOwner.REPLAY_PREPARATION,
)
"""Many small launches: they cause short gaps."""
STALLING = (IdleOwner.HOST_CALLBACK, IdleOwner.GARBAGE_COLLECTION, IdleOwner.HOST_COLLECTIVE)
"""The host launches nothing for a while: they cause long gaps."""


@memoized
def idle_owners(signals: Signals) -> Mapping[IdleOwner, Intervals]:
    """The parts of `Signals.host_idle` that have an owner; no two of them overlap.

    After the overriding ones, short gaps belong to what launches and long gaps to what stalls, if
    both apply. What is left before one kernel belongs to its launcher.
    """
    slow = join(*(launch.idle for launch in slow_launches(signals)))
    return {**_owned_by_kind(signals), IdleOwner.SLOW_LAUNCH: slow}


@memoized
def slow_launches(signals: Signals) -> tuple[SlowLaunch, ...]:
    """What takes the host far longer to launch than other work, without idle of other owners."""
    return find_slow_launches(
        signals, minus(signals.host_idle, join(*_owned_by_kind(signals).values()))
    )


@memoized
def _owned_by_kind(signals: Signals) -> Mapping[IdleOwner, Intervals]:
    """The idle time of all owners that are known by what the host does."""
    events, on_host = signals.trace.events, signals.trace.rows(EventKind.HOST_COLLECTIVE)
    candidates = {
        IdleOwner.PREEMPTION: preempted_calls(signals).idle,
        IdleOwner.GRAPH_CAPTURE: graph_captures(signals).setting_up,
        IdleOwner.FIRST_CALL: first_calls(signals).idle,
        IdleOwner.ARGUMENT_TRANSFER: intersect(
            argument_transfers(signals).exposed, signals.host_idle
        ),
        IdleOwner.SYNCHRONIZATION: signals.synchronizations.induced,
        IdleOwner.BUFFER_BROADCAST: buffer_broadcasts(signals).idle,
        IdleOwner.OPTIMIZER_LOOP: optimizer_loop(signals).idle,
        IdleOwner.ZEROING_LOOP: zeroing_loop(signals).idle,
        IdleOwner.EAGER_CALLS: eager_calls(signals).idle,
        IdleOwner.GRAPH_BREAKS: graph_breaks(signals).idle,
        IdleOwner.REPLAY_PREPARATION: replay_preparation(signals).idle,
        IdleOwner.HOST_CALLBACK: host_callbacks(signals).waits,
        IdleOwner.GARBAGE_COLLECTION: garbage_collections(signals)[1],
        IdleOwner.HOST_COLLECTIVE: events.spans(on_host),
    }
    owned = dict.fromkeys(IdleOwner, EMPTY)
    short_gaps, _ = short_and_long_gaps(signals.attribution.idle, LONGEST_LAUNCH_GAP_NS)
    short_idle = intersect(signals.host_idle, short_gaps)
    for idle, order in (
        (short_idle, (*OVERRIDING, *LAUNCHING, *STALLING)),
        (minus(signals.host_idle, short_gaps), (*OVERRIDING, *STALLING, *LAUNCHING)),
    ):
        unowned = idle
        for owner in order:
            owned[owner] = join(owned[owner], intersect(unowned, candidates[owner]))
            unowned = minus(unowned, candidates[owner])
    return owned


def idle_without(signals: Signals, *owners: IdleOwner) -> Intervals:
    """`Signals.host_idle` without the parts of some owners."""
    owned = idle_owners(signals)
    return minus(signals.host_idle, join(*(owned[owner] for owner in owners)))


@memoized
def closable_idle(signals: Signals) -> Intervals:
    """Idle time that the host causes, or that work in the queue does, and that has no owner.

    A host that saves time runs ahead, which may close any of it later. What has an owner is left to
    the findings about that. Waits are no such owner: a host that is ahead waits less.
    """
    idle = signals.attribution.of(*HOST_CAUSED, Cause.QUEUED, Cause.BETWEEN_STEPS)
    owned = idle_owners(signals)
    kinds = owned.keys() - {IdleOwner.SYNCHRONIZATION}
    return minus(idle, join(*(owned[kind] for kind in kinds)))


_FEWEST_GAPS = 3


def recurs(signals: Signals, gaps: Intervals) -> bool:
    """Whether the gaps occur in most steps rather than once."""
    steps = signals.steps
    length = gaps[:, 1] - gaps[:, 0]
    if len(steps) <= 1:
        # One long stretch among short ones is something that the program does once.
        return len(gaps) >= _FEWEST_GAPS and 3 * int(length.max()) <= 2 * int(length.sum())
    # A gap that crosses the end of a step belongs to the step with most of it.
    step = np.searchsorted(steps.start_ns, gaps[:, 0] + length // 2, side="right")
    return bool(2 * len(distinct(step)) > len(steps))


def is_python_in_single_step(signals: Signals, claims: Intervals) -> bool:
    """Whether the only step, marked by the program, runs Python where it stalls.

    One-time work, such as loading a library or allocating memory, is mostly native code.
    """
    steps = signals.steps
    python_ns = shared_ns(claims, signals.attribution.intervals[Cause.PYTHON])
    return len(steps) == 1 and not steps.is_inferred and 2 * python_ns > total_ns(claims)


def records_all_operators(signals: Signals) -> bool:
    """Whether time between two operators is Python; not if threads run collectives.

    On the CPU, PyTorch and XLA record every operator.
    """
    trace = signals.trace
    return (
        signals.device.is_host_only
        and trace.source.framework in ("pytorch", "jax")
        and len(trace.rows(EventKind.HOST_COLLECTIVE)) == 0
    )
