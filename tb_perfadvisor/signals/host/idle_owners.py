"""Idle that the host causes, split by what specifically causes it.

Several rules look at the same idle. This split decides once whose it is, so that general rules
(launching is slow, Python is slow) leave out what specific rules report.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from tb_perfadvisor.signals.host.buffer_broadcasts import buffer_broadcasts
from tb_perfadvisor.signals.host.garbage_collection import garbage_collections
from tb_perfadvisor.signals.host.host_callbacks import host_callbacks
from tb_perfadvisor.signals.host.optimizer_loops import optimizer_loop, zeroing_loop
from tb_perfadvisor.signals.host.preempted_calls import preempted_calls
from tb_perfadvisor.signals.launch.compiled_regions import graph_breaks
from tb_perfadvisor.signals.launch.device_graphs import graph_captures, replay_preparation
from tb_perfadvisor.signals.launch.eager_calls import eager_calls
from tb_perfadvisor.signals.launch.first_calls import first_calls
from tb_perfadvisor.signals.launch.gaps import LONGEST_LAUNCH_GAP_NS, short_and_long_gaps
from tb_perfadvisor.signals.launch.runtime_calls import argument_transfers
from tb_perfadvisor.signals.launch.slow_launches import SlowLaunch, find_slow_launches
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.trace import EventKind
from tb_perfadvisor.trace.intervals import EMPTY, Intervals, intersect, join, minus, union


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
        IdleOwner.ARGUMENT_TRANSFER: argument_transfers(signals).idle,
        IdleOwner.SYNCHRONIZATION: signals.synchronizations.induced,
        IdleOwner.BUFFER_BROADCAST: buffer_broadcasts(signals).idle,
        IdleOwner.OPTIMIZER_LOOP: optimizer_loop(signals).idle,
        IdleOwner.ZEROING_LOOP: zeroing_loop(signals).idle,
        IdleOwner.EAGER_CALLS: eager_calls(signals).idle,
        IdleOwner.GRAPH_BREAKS: graph_breaks(signals).idle,
        IdleOwner.REPLAY_PREPARATION: replay_preparation(signals).idle,
        IdleOwner.HOST_CALLBACK: host_callbacks(signals).waits,
        IdleOwner.GARBAGE_COLLECTION: garbage_collections(signals)[1],
        IdleOwner.HOST_COLLECTIVE: union(events.start_ns[on_host], events.end_ns[on_host]),
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


@memoized
def happening_once(signals: Signals) -> Intervals:
    """Idle time of what a program does only once: first calls, and capturing a graph."""
    if signals.trace.totals is not None:
        return EMPTY
    owned = idle_owners(signals)
    return join(owned[IdleOwner.FIRST_CALL], owned[IdleOwner.GRAPH_CAPTURE])


def idle_without(signals: Signals, *owners: IdleOwner) -> Intervals:
    """`Signals.host_idle` without the parts of some owners."""
    owned = idle_owners(signals)
    return minus(signals.host_idle, join(*(owned[owner] for owner in owners)))
