"""What changes would save of a window, by re-timing its dependency graph."""

from __future__ import annotations

from msgspec import Struct, field

from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.recording.profiler_overhead import profiler_overhead
from tb_perfadvisor.trace import EventKind
from tb_perfadvisor.trace.integer_groups import is_in
from tb_perfadvisor.trace.intervals import EMPTY, Intervals, complement, intersect, total_ns, union
from tb_perfadvisor.units import format_share
from tb_perfadvisor.whatif.critical_path import CriticalPath, find_critical_path
from tb_perfadvisor.whatif.fixes import Fix, Overlap, Remove, Shorten
from tb_perfadvisor.whatif.graph import Graph, build_graph
from tb_perfadvisor.whatif.program import HOST_HIDDEN, Program, Unfit, find_program
from tb_perfadvisor.whatif.replay import Gone, retime, take_away
from tb_perfadvisor.whatif.waits import wait_arcs

DEVIATION = 0.02
"""How far the unchanged program, run on and on, may be from the recorded window; and how much of
it calls may wait for what the file does not show."""
HIDDEN_SHARE = 0.1
"""With more of the window in which the device works and nothing of the host is recorded, the host
may as well wait as work, and what a faster device would be worth is unknown."""
LONGEST_PAUSE_NS = 1_000_000
"""Python between two operators takes less, and less than a hundredth of a step."""
LEAST_RECORDING_SHARE = 0.01
"""To tell a host without a profiler from the recorded one is not worth it below this share."""
HEAVY_RECORDING_SHARE = 0.1
"""What is seen of recording's cost is a part of it, for what calls of the device's runtime cost is
not seen. From here on, the rest may be what keeps the host from running ahead."""


class Simulation(Struct, frozen=True):
    """A window that can be re-timed."""

    graph: Graph
    length_ns: int
    """Of the window as it is, run on and on."""
    pauses: Intervals = EMPTY
    """When recording is seen to have held the host up; nothing where that is too little."""
    recording: Gone | None = None
    """The graph's loss of time without them."""
    unrecorded_ns: int | None = None
    """Length of the window without them."""
    known: dict[tuple[int, ...], tuple[tuple[Fix, ...], int]] = field(default_factory=dict)
    """What was asked already: fixes and what they save, by the fixes' identities."""

    @property
    def hides_pace(self) -> bool:
        """Whether recording took so long that nobody knows how fast the host is without it."""
        return total_ns(self.pauses) > HEAVY_RECORDING_SHARE * self.length_ns

    def saved_ns(self, *fixes: Fix) -> int:
        """What fixes together save of the window; never less than nothing.

        Where it counts how fast the host is, that is the host without a profiler.
        """
        # Ranking asks again for what has been asked of each finding. Whose fixes are kept here,
        # nothing else has their identity.
        same = tuple(map(id, fixes))
        if same not in self.known:
            self.known[same] = (fixes, self._saved_ns(fixes))
        return self.known[same][1]

    def _saved_ns(self, fixes: tuple[Fix, ...]) -> int:
        if self.unrecorded_ns is None or not _count_pace(*fixes):
            return max(self.length_ns - retime(self.graph, fixes), 0)
        return max(self.unrecorded_ns - retime(self.graph, fixes, self.recording), 0)


def host_decides(*fixes: Fix) -> bool:
    """Whether the host decides what any of these fixes is worth: of a faster device it does."""
    return any(isinstance(fix, Shorten | Overlap) for fix in fixes)


@memoized
def program(signals: Signals) -> Program | Unfit:
    """The pieces of the used window, or why they cannot be told apart."""
    return find_program(signals)


@memoized
def sees_host(signals: Signals) -> bool:
    """Whether the profile shows what the host does while the device works."""
    pieces, window_ns = program(signals), signals.attribution.window_ns
    return not isinstance(pieces, Unfit) and _hidden_ns(signals, pieces) <= HIDDEN_SHARE * window_ns


@memoized
def simulation(signals: Signals) -> Simulation | Unfit:
    """The simulation of the used window, or why there is none."""
    pieces = program(signals)
    if isinstance(pieces, Unfit):
        return pieces
    window_ns = signals.attribution.window_ns
    waits = wait_arcs(signals.trace, pieces)
    # Known before the graph, which takes most of the time and memory.
    if waits.unexplained_ns > DEVIATION * window_ns:
        return Unfit("calls wait for what the profile does not show")
    graph = build_graph(signals.trace, pieces, waits)
    length_ns = retime(graph)
    if abs(length_ns - window_ns) > DEVIATION * window_ns:
        share = format_share(length_ns / window_ns)
        return Unfit(f"re-timed without a change the steps take {share} of their time")
    pauses = profiler_overhead(signals).pauses
    if total_ns(pauses) <= LEAST_RECORDING_SHARE * window_ns:
        return Simulation(graph, length_ns)
    recording = take_away(graph, pauses)
    return Simulation(graph, length_ns, pauses, recording, retime(graph, (), recording))


def simulation_for(signals: Signals, *fixes: Fix) -> Simulation | Unfit:
    """The simulation, if it can judge these fixes; of a large profile it is not made in vain."""
    pieces = program(signals)
    if isinstance(pieces, Unfit):
        return pieces
    if host_decides(*fixes) and not sees_host(signals):
        return HOST_HIDDEN
    return simulation(signals)


@memoized
def critical_path(signals: Signals) -> CriticalPath | Unfit:
    """The critical path of the used window, or why there is none."""
    steps = simulation(signals)
    return steps if isinstance(steps, Unfit) else find_critical_path(steps.graph)


def _hidden_ns(signals: Signals, program: Program) -> int:
    """How long the device works while nothing is recorded of the threads that run the steps."""
    events = signals.trace.events
    on_line = is_in(events.track, program.lines[0]) & (events.kind != EventKind.STEP)
    shown = union(events.start_ns[on_line], events.end_ns[on_line])
    unseen = complement(shown, program.start_ns, program.end_ns)
    longest_ns = min(LONGEST_PAUSE_NS, signals.steps.window_ns // signals.steps.count // 100)
    unseen = unseen[unseen[:, 1] - unseen[:, 0] > longest_ns]
    return total_ns(intersect(unseen, signals.device.busy))


def _count_pace(*fixes: Fix) -> bool:
    """Whether what fixes are worth depends on how fast the host launches."""
    return host_decides(*fixes) or any(isinstance(fix, Remove) and fix.is_pace for fix in fixes)
