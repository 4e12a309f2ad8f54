"""What changes would save of the used steps, by replaying their dependency graph."""

from __future__ import annotations

import numpy as np
from msgspec import Struct, field

from tb_perfadvisor.signals import Cause, Signals, ranks_of
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.ranks.rank_summary import CAUSES
from tb_perfadvisor.signals.ranks.stragglers import uncovered_waits
from tb_perfadvisor.signals.recording.profiler_overhead import profiler_overhead
from tb_perfadvisor.trace import EventKind
from tb_perfadvisor.trace.integer_groups import is_in
from tb_perfadvisor.trace.intervals import EMPTY, Intervals, complement, intersect, total_ns, union
from tb_perfadvisor.trace.tables import Float64
from tb_perfadvisor.units import format_share
from tb_perfadvisor.whatif.graph import Graph, build_graph, wait_edges
from tb_perfadvisor.whatif.program import HOST_HIDDEN, NotReplayable, Program, find_program
from tb_perfadvisor.whatif.replay import (
    Fix,
    Overlap,
    Remove,
    RemovedTime,
    Shorten,
    remove_time,
    replay,
)

DEVIATION = 0.02
"""How far the replay of the unchanged program may differ from the recorded steps, and for how much
of them calls may wait for something that the file does not show."""
HIDDEN_SHARE = 0.1
"""If nothing of the host is recorded during more device work than this, the host may be waiting or
working, and the worth of a faster device is unknown."""
LONGEST_PAUSE_NS = 1_000_000
"""Python between two operators takes less than this, and less than a hundredth of a step."""
LEAST_RECORDING_SHARE = 0.01
"""Below this share, a host without the profiler is not replayed separately."""
HEAVY_RECORDING_SHARE = 0.1
"""Only a part of what recording costs is visible: its cost in calls of the device runtime is not.
From this share on, the invisible part may be what keeps the host from running ahead."""


class Simulation(Struct, frozen=True):
    """The used steps, ready to be replayed."""

    graph: Graph
    length_ns: int
    """Of the used steps, replayed without a change."""
    pauses: Intervals = EMPTY
    """When recording visibly delayed the host; empty if that is negligible."""
    without_pauses: RemovedTime | None = None
    """The pauses, as time removed from the graph."""
    unrecorded_ns: int | None = None
    """Length of the used steps without the pauses."""
    saved_by_fixes: dict[tuple[int, ...], tuple[tuple[Fix, ...], int]] = field(default_factory=dict)
    """Results so far: fixes and what they save, by the identities of the fixes."""

    @property
    def host_speed_is_unknown(self) -> bool:
        """Whether recording delayed the host so much that its own speed is unknown."""
        return total_ns(self.pauses) > HEAVY_RECORDING_SHARE * self.length_ns

    def leaves_out_pauses(self, *fixes: Fix) -> bool:
        """Whether fixes are judged without the pauses that recording caused."""
        return self.unrecorded_ns is not None and _depends_on_host(*fixes)

    def saved_ns(self, *fixes: Fix) -> int:
        """Compute what fixes save together, at least 0.

        If the speed of the host matters, that is its speed without the profiler.
        """
        # Ranking asks again for each finding. Storing the fixes keeps their ids from being reused.
        key = tuple(map(id, fixes))
        if key not in self.saved_by_fixes:
            self.saved_by_fixes[key] = (fixes, self._saved_ns(fixes))
        return self.saved_by_fixes[key][1]

    def _saved_ns(self, fixes: tuple[Fix, ...]) -> int:
        if self.unrecorded_ns is None or not self.leaves_out_pauses(*fixes):
            return max(self.length_ns - replay(self.graph, fixes), 0)
        return max(self.unrecorded_ns - replay(self.graph, fixes, self.without_pauses), 0)


def host_decides(*fixes: Fix) -> bool:
    """Whether the worth of these fixes depends on the host: that of a faster device does."""
    return any(isinstance(fix, Shorten | Overlap) for fix in fixes)


@memoized
def program(signals: Signals) -> Program | NotReplayable:
    """The parts of the program in the used steps, or why they cannot be told apart."""
    return find_program(signals)


@memoized
def sees_host(signals: Signals) -> bool:
    """Whether the profile shows what the host does while the device works."""
    pieces, window_ns = program(signals), signals.attribution.window_ns
    return (
        not isinstance(pieces, NotReplayable)
        and _hidden_ns(signals, pieces) <= HIDDEN_SHARE * window_ns
    )


@memoized
def simulation(signals: Signals) -> Simulation | NotReplayable:
    """The simulation of the used window, or why there is none."""
    pieces = program(signals)
    if isinstance(pieces, NotReplayable):
        return pieces
    window_ns = signals.attribution.window_ns
    waits = wait_edges(signals.trace, pieces)
    # Check this before building the graph, which takes most of the time and memory.
    if waits.unexplained_ns > DEVIATION * window_ns:
        return NotReplayable("calls wait for what the profile does not show")
    graph = build_graph(signals.trace, pieces, waits)
    length_ns = replay(graph)
    if abs(length_ns - window_ns) > DEVIATION * window_ns:
        share = format_share(length_ns / window_ns)
        return NotReplayable(f"a replay without any change takes {share} of the recorded time")
    pauses = profiler_overhead(signals).pauses
    if total_ns(pauses) <= LEAST_RECORDING_SHARE * window_ns:
        return Simulation(graph, length_ns)
    without_pauses = remove_time(graph, pauses)
    return Simulation(graph, length_ns, pauses, without_pauses, replay(graph, (), without_pauses))


def simulation_for(signals: Signals, *fixes: Fix) -> Simulation | NotReplayable:
    """The simulation if it can judge these fixes. Otherwise it is not built, which saves time."""
    pieces = program(signals)
    if isinstance(pieces, NotReplayable):
        return pieces
    if host_decides(*fixes) and not sees_host(signals):
        return HOST_HIDDEN
    return simulation(signals)


def _hidden_ns(signals: Signals, program: Program) -> int:
    """How long the device works while nothing of the threads that run the steps is recorded."""
    events = signals.trace.events
    on_line = is_in(events.track, program.lines[0]) & (events.kind != EventKind.STEP)
    shown = union(events.start_ns[on_line], events.end_ns[on_line])
    unseen = complement(shown, program.start_ns, program.end_ns)
    longest_ns = min(LONGEST_PAUSE_NS, signals.steps.window_ns // signals.steps.count // 100)
    unseen = unseen[unseen[:, 1] - unseen[:, 0] > longest_ns]
    return total_ns(intersect(unseen, signals.device.busy))


def _depends_on_host(*fixes: Fix) -> bool:
    """Whether the worth of these fixes depends on how fast the host launches."""
    return host_decides(*fixes) or any(
        isinstance(fix, Remove) and fix.is_launching for fix in fixes
    )


# Savings are those of the critical rank, which the others wait for in collectives. A change saves
# at most the time until another rank becomes the slowest. The change is made on all ranks: it takes
# the same share of each cause off every rank.

_COMMUNICATION = CAUSES.index(Cause.COMMUNICATION)


class OtherRanks(Struct, frozen=True):
    """Where the time of the other ranks goes, without their waiting for one another."""

    cause_ns: Float64
    """Shape (other ranks, causes), scaled to the number of steps of the critical rank."""
    window_ns: int
    """Of the critical rank."""
    intervals: tuple[Intervals, ...]
    """The time of each cause on the critical rank."""

    def most_saved_ns(self, claims: Intervals) -> int:
        """The most that a change can save of the used window, given the time that it claims."""
        left = np.array(
            [
                1 - total_ns(intersect(claims, intervals)) / max(1, total_ns(intervals))
                for intervals in self.intervals
            ]
        )
        return max(self.window_ns - round(float((self.cause_ns @ left).max())), 0)


@memoized
def other_ranks(signals: Signals) -> OtherRanks | None:
    """The other ranks; None for a single rank, or if not every collective is known of all ranks.

    Also None on the CPU: ranks that share the cores of a host take turns, and compute longer where
    they would otherwise wait.
    """
    ranks = ranks_of(signals)
    if signals.device.is_host_only:
        return None
    known = [len(summary.collectives) for summary in ranks.summaries]
    matched = np.bincount(ranks.matched.rank, minlength=len(ranks))
    left_out = any(summary.collectives.left_out for summary in ranks.summaries)
    if len(ranks) < 2 or not len(ranks.matched) or left_out or (matched != known).any():
        return None
    if not ranks.matched.is_whole.all():
        return None
    waits = np.bincount(ranks.matched.rank, uncovered_waits(ranks), minlength=len(ranks))
    cause_ns = np.stack([summary.cause_total_ns for summary in ranks.summaries]).astype(np.float64)
    cause_ns[:, _COMMUNICATION] = np.maximum(cause_ns[:, _COMMUNICATION] - waits, 0)
    steps = np.array([summary.step_count for summary in ranks.summaries])
    critical_steps = ranks.summaries[signals.worker].step_count
    others = np.arange(len(ranks)) != signals.worker
    attribution = signals.attribution
    return OtherRanks(
        (cause_ns * (critical_steps / steps)[:, np.newaxis])[others],
        attribution.window_ns,
        tuple(attribution.intervals[cause] for cause in CAUSES),
    )


def most_saved_ns(signals: Signals, claims: Intervals) -> int:
    """The most that a change can save of the used window, given the time that it claims.

    This is the length of the window if the other ranks are unknown.
    """
    others = other_ranks(signals)
    return signals.attribution.window_ns if others is None else others.most_saved_ns(claims)
