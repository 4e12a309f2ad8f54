"""What changes would save of a window, by re-timing its dependency graph."""

from __future__ import annotations

from dataclasses import dataclass
from weakref import WeakKeyDictionary

from tb_perfadvisor.signals import Signals
from tb_perfadvisor.whatif.fixes import Fix
from tb_perfadvisor.whatif.graph import Graph, build_graph
from tb_perfadvisor.whatif.program import Unfit, find_program
from tb_perfadvisor.whatif.retiming import retime

DEVIATION = 0.02
"""How far the unchanged program, run on and on, may be from the recorded window."""


@dataclass(frozen=True, slots=True)
class Simulation:
    """A window that can be re-timed."""

    graph: Graph
    length_ns: int
    """Of the window as it is, run on and on."""

    def saved_ns(self, *fixes: Fix) -> int:
        """What fixes together save of the window; never less than nothing."""
        return max(self.length_ns - retime(self.graph, fixes).length_ns, 0)


_known: WeakKeyDictionary[Signals, Simulation | Unfit] = WeakKeyDictionary()


def simulation(signals: Signals) -> Simulation | Unfit:
    """The simulation of the used window, or why there is none; memoised."""
    found = _known.get(signals)
    if found is None:
        found = _known[signals] = _simulation(signals)
    return found


def _simulation(signals: Signals) -> Simulation | Unfit:
    program = find_program(signals)
    if isinstance(program, Unfit):
        return program
    graph = build_graph(signals.trace, program)
    length_ns = retime(graph).length_ns
    window_ns = signals.attribution.window_ns
    if abs(length_ns - window_ns) > DEVIATION * window_ns:
        return Unfit(
            f"re-timed without a change the steps take {length_ns / window_ns:.1%} of their time"
        )
    return Simulation(graph, length_ns)
