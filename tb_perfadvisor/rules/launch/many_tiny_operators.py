"""A Python loop calls thousands of tiny operators."""

from __future__ import annotations

from collections.abc import Iterable

from tb_perfadvisor.advice import advise
from tb_perfadvisor.rules.amounts import per_step
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.tables import events_by_name
from tb_perfadvisor.rules.finding import Column, Finding, Saving, Table, costliest
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.host.idle_owners import LAUNCHING, IdleOwner, idle_without
from tb_perfadvisor.signals.host.operator_loops import LoopKind, OperatorLoop, operator_loops
from tb_perfadvisor.signals.host.source_lines import place_of
from tb_perfadvisor.signals.recording.profiler_overhead import profiler_overhead
from tb_perfadvisor.trace.integer_groups import distinct
from tb_perfadvisor.trace.intervals import intersect, join, total_ns
from tb_perfadvisor.units import format_share
from tb_perfadvisor.whatif import Remove

_RECORDING_FACTORS = (2.0, 1.0, 0.5)
"""What recording cost, as multiples of its estimate: for the low, expected and high saving. Eleven
training loops took 0.9 to 2.3 times the estimate; 25 of 27 operators on four to 256 numbers, called
again and again from a warm cache, 0.4 to 0.9 times. With PyTorch 2.13 on x86 virtual machines."""
_CALL_NS = (400, 650)
"""What an operator costs without a profiler, with its part of the Python code: for the low and the
expected saving. The same operators, some of which call dozens of others, mostly took 0.3 to 1.4
microseconds for each that was recorded, and 0.66 in the least-squares fit."""
_REALIZED = {
    LoopKind.OPTIMIZER: (0.8, 1.0, 1.0),
    LoopKind.PARAMETERS: (0.4, 1.0, 1.0),
    LoopKind.ELEMENTS: (0.7, 1.0, 1.0),
}
"""Low, expected and high gain, as parts of the dispatch. Measured in the same way: a fused Adam
saved 1.1 times the dispatch, and SGD 0.9; lists of gradients 0.9; batches of samples 0.7 to 1.5."""
_COMPUTES_FASTER = (LoopKind.OPTIMIZER, LoopKind.ELEMENTS)
"""Large operators compute faster than many small ones, and a fused optimizer reads each parameter
once, not once for each operator."""
_FUSED_CELL = "aten::lstm_cell"
_FUSED_LAYER = (0.5, 1.0, 1.0)
"""On the CPU, an LSTM layer is one operator for all places: 0.8 to 0.99 of the loop is gone."""
_NATIVE_LOOP = (0.0, 0.2, 0.5)
"""Other recurrent layers call the same operators from C++, without those that index the sequence:
a GRU has 20 % fewer operators than a loop over its cell, a plain unit 35 %."""
_SUBJECTS = {
    LoopKind.OPTIMIZER: "the optimizer's loop over parameters",
    LoopKind.PARAMETERS: "a loop over parameters",
    LoopKind.SEQUENCE: "a loop over the places of a sequence",
    LoopKind.ELEMENTS: "a loop over samples or other elements",
}
_ADVICE = {
    LoopKind.OPTIMIZER: ("fused-optimizer", "list-operators"),
    LoopKind.PARAMETERS: ("list-operators", "compile"),
    LoopKind.SEQUENCE: ("recurrent-layer", "compile", "larger-batch"),
    LoopKind.ELEMENTS: ("stacked-elements", "compile"),
}


class ManyTinyOperators(Rule):
    """A Python loop calls thousands of operators that compute next to nothing.

    What it finds
    -------------
    The same operators called again and again in a step, at least 16 times: for each parameter in an
    optimizer, for each sample of a batch, for each box of a loss, for each place of a sequence.

    Why it matters
    --------------
    An operator on four numbers takes as long as one on four thousand: some microseconds of Python,
    dispatch and allocation. A loop pays that for each element, one operator for all of them pays it
    once.

    How it is measured
    ------------------
    The outermost operators of a step form a sequence. Where it repeats with some period, a loop
    ran. In the backward pass, the nodes of the same loop repeat, too. Its dispatch is the time
    between its operators, and up to five microseconds of each operator's own time. What recording
    costs is subtracted, down to 0.65 microseconds for each operator and each that it calls.

    On the CPU, expected is the dispatch for loops that one call can replace. For elements and
    optimizers, half of the remaining time is added, because large operators also compute faster.
    High is the whole time of the loop. Layers depend on each other, so only compiling them
    helps: on the CPU, they are left to eager-steps. An LSTM layer replaces its loop of
    cells by one operator; other recurrent layers on the CPU run the same loop in C++, which leaves
    a fifth of the dispatch to gain, unless compiling gains more. On a device, it is
    the idle time during the loop, a part of what launch-bound reports; loops over layers are left
    to that rule, and optimizers to unfused-optimizer; on the CPU, those with a fused form, to
    optimizer-loop.

    When to ignore
    --------------
    When each iteration needs the result of the one before, in a way that no library call covers.
    On the CPU, operators for lists of tensors (foreach) still loop inside, and save only the Python
    part.

    How to verify
    -------------
    The number of operators per step falls from thousands to tens, and the step is shorter.

    References:
    ----------
    PyTorch documentation, torch.optim, on foreach and fused implementations; torch.vmap;
    "PyTorch Performance Tuning Guide".
    """

    id = "many-tiny-operators"
    title = "Replace a loop of tiny operators by one call"
    category = "launch"
    refines = "launch-bound"
    needs = (Need.WORK, Need.HOST_EVENTS, Need.PYTORCH)
    is_preview = False

    minimum_share = Limit(
        0.05, "share", "Rewriting a loop is not worth it for less than 5 % of the step."
    )
    minimum_dispatch_share = Limit(
        0.4,
        "share",
        "If operators on the CPU compute most of the time, fewer of them take about as long.",
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding for each loop of tiny operators."""
        for loop in operator_loops(signals):
            saving = self._saving(signals, loop)
            if saving is not None and not self.is_minor(saving.expected_ns, signals):
                yield _finding(signals, loop, saving)

    def _saving(self, signals: Signals, loop: OperatorLoop) -> Saving | None:
        if not signals.device.is_host_only:
            return _on_device(signals, loop)
        is_mostly_dispatch = loop.dispatch_ns >= self.minimum_dispatch_share * total_ns(loop.spans)
        if loop.kind not in _ADVICE or not (is_mostly_dispatch or _has_fused_layer(signals, loop)):
            return None  # eager-steps says what compiling saves
        return _on_cpu(signals, loop)


def _on_cpu(signals: Signals, loop: OperatorLoop) -> Saving:
    recording_ns = profiler_overhead(signals).within_ns(loop.spans)
    computing_ns = total_ns(loop.spans) - loop.dispatch_ns
    low_ns, expected_ns, high_ns = (
        max(loop.dispatch_ns - factor * recording_ns, min(call_ns * loop.calls, loop.dispatch_ns))
        for factor, call_ns in zip(_RECORDING_FACTORS, (*_CALL_NS, _CALL_NS[-1]), strict=True)
    )
    low, expected, high = _realized(signals, loop)
    is_one_call = low > 0
    faster_ns = computing_ns / 2 if loop.kind in _COMPUTES_FASTER else 0
    return Saving(
        int(low * (low_ns + faster_ns)),
        int(expected * (expected_ns + faster_ns) * (1 - 1 / loop.iterations)),  # one is left
        int(high * high_ns + computing_ns * is_one_call),
        loop.spans,
        "modeled" if is_one_call else "heuristic",
    )


def _realized(signals: Signals, loop: OperatorLoop) -> tuple[float, float, float]:
    """Low, expected and high gain, as parts of the dispatch; low is 0 if a loop remains."""
    if loop.kind is LoopKind.SEQUENCE:
        return _FUSED_LAYER if _has_fused_layer(signals, loop) else _NATIVE_LOOP
    return _REALIZED[loop.kind]


def _has_fused_layer(signals: Signals, loop: OperatorLoop) -> bool:
    """Whether one operator runs such cells over a whole sequence, which also computes faster."""
    names = distinct(signals.trace.events.name[loop.rows]).tolist()
    return _FUSED_CELL in {signals.trace.strings[name] for name in names}


def _on_device(signals: Signals, loop: OperatorLoop) -> Saving | None:
    if loop.kind not in (LoopKind.ELEMENTS, LoopKind.PARAMETERS):
        return None
    idle = intersect(idle_without(signals, IdleOwner.SYNCHRONIZATION, *LAUNCHING), loop.spans)
    idle_ns = total_ns(idle)
    recording_ns = profiler_overhead(signals).within_ns(idle)
    return Saving(
        max(idle_ns - recording_ns, 0) // 2,
        idle_ns,
        idle_ns,
        idle,
        "measured",
        (Remove(join(loop.spans, idle), is_launching=True),),
    )


def _finding(signals: Signals, loop: OperatorLoop, saving: Saving) -> Finding:
    events, whole_ns = signals.trace.events, total_ns(loop.spans)
    steps = max(len(signals.steps), 1)
    place = place_of(signals, int(loop.rows[loop.passes[0][0]]))
    where = f" in {place}" if place else ""
    duration = events.duration_ns[loop.rows]
    return Finding(
        instance=f"{len(loop.rows) // steps:,} operators{where}",
        summary=(
            f"{per_step(whole_ns, signals)} goes into {_SUBJECTS[loop.kind]}{where}:"
            f" {len(loop.rows) // steps:,} operators in {loop.iterations:,} iterations."
            f" {format_share(loop.dispatch_ns / whole_ns)} of that is calling them, not computing."
        ),
        saving=saving,
        evidence=(
            _iterations(signals, loop),
            events_by_name(
                "Operators of the loop",
                "Operator",
                signals.trace,
                loop.rows,
                ((Column("host_ns", "Time on the host", "ns"), duration),),
            ),
            costliest("Longest of these operators", signals.worker, loop.rows, duration),
        ),
        remedies=advise(*_ADVICE[loop.kind]),
    )


def _iterations(signals: Signals, loop: OperatorLoop) -> Table:
    """The operators that each pass of the loop calls in one iteration, in their order."""
    lines = tuple(
        (number, signals.trace.name(row), place_of(signals, row) or None)
        for number, (first, period) in enumerate(loop.passes, start=1)
        for row in loop.rows[first : first + period].tolist()
    )
    return Table(
        "One iteration",
        (Column("pass", "Pass", "count"), Column("name", "Operator"), Column("place", "Where")),
        lines,
    )
