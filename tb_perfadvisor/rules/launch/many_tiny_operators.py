"""A Python loop calls thousands of tiny operators."""

from __future__ import annotations

from collections.abc import Iterable

from tb_perfadvisor.rules.amounts import per_step
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.tables import events_by_name
from tb_perfadvisor.rules.finding import Column, Finding, Remedy, Saving, Table, costliest
from tb_perfadvisor.rules.remedies.compute.batch_size import LARGER_BATCH
from tb_perfadvisor.rules.remedies.compute.optimizer import FUSED_OPTIMIZER
from tb_perfadvisor.rules.remedies.launch.compiling import COMPILE
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.host.idle_owners import LAUNCHING, IdleOwner, idle_without
from tb_perfadvisor.signals.host.operator_loops import LoopKind, OperatorLoop, operator_loops
from tb_perfadvisor.signals.host.source_lines import source_line
from tb_perfadvisor.signals.recording.profiler_overhead import profiler_overhead
from tb_perfadvisor.trace import EventKind
from tb_perfadvisor.trace.intervals import intersect, join, total_ns
from tb_perfadvisor.units import format_share
from tb_perfadvisor.whatif import Remove

_RECORDING_FACTORS = (2.0, 1.5, 1.0)
"""What recording cost, as multiples of its estimate: for the low, expected and high saving. Eleven
loops took 0.9 to 2.3 times the estimate, with PyTorch 2.13 on two x86 virtual machines."""
_LEAST_CALL_NS = 1_000
"""What calling an operator from Python costs at least, without a profiler: 0.9 to 1.9 microseconds
for operators on four numbers, measured in the same way."""
_REALIZED = {
    LoopKind.OPTIMIZER: (0.6, 1.0),
    LoopKind.PARAMETERS: (0.4, 1.0),
    LoopKind.ELEMENTS: (0.5, 1.0),
}
"""Low and expected gain, as parts of the dispatch. Measured in the same way: a fused Adam saved 1.1
times the dispatch, and SGD 0.9; lists of gradients 0.9; batches of samples 0.7 to 1.5."""
_COMPILED = (0.0, 0.5)
"""What torch.compile saves of the dispatch of layers: 1.2 times as much was measured with sixty
small ones, nothing where it falls back to single operators."""
_SUBJECTS = {
    LoopKind.OPTIMIZER: "the optimizer's loop over parameters",
    LoopKind.PARAMETERS: "a loop over parameters",
    LoopKind.LAYERS: "small layers",
    LoopKind.SEQUENCE: "a loop over the places of a sequence",
    LoopKind.ELEMENTS: "a loop over samples or other elements",
    LoopKind.UNKNOWN: "a loop",
}
_LISTS = (
    Remedy(
        text="Call one operator for the list of all parameters.",
        snippet=(
            "averaged = torch.optim.swa_utils.AveragedModel(\n"
            "    model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.999)\n"
            ")\n"
            "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # one call for all\n"
            "torch._foreach_mul_([p.grad for p in model.parameters()], scale)"
        ),
        framework="pytorch",
        reference="https://docs.pytorch.org/docs/stable/optim.html#weight-averaging-swa-and-ema",
    ),
)
_ONE_CALL = (
    Remedy(
        text="Stack the elements and call each operator once for all of them. torch.vmap does it "
        "for a function that is written for a single element.",
        snippet=(
            "outputs = model(batch)                   # not [model(sample) for sample in batch]\n"
            "losses = torch.vmap(loss_of_one)(outputs, targets)"
        ),
        framework="pytorch",
        reference="https://docs.pytorch.org/docs/stable/generated/torch.vmap.html",
    ),
)
_LAYER = (
    Remedy(
        text="Give the whole sequence to a recurrent layer instead of calling a cell for each "
        "place.",
        snippet="layer = torch.nn.GRU(inputs, hidden, batch_first=True)\n"
        "outputs, state = layer(sequences)",
        framework="pytorch",
        reference="https://docs.pytorch.org/docs/stable/generated/torch.nn.GRU.html",
    ),
)
_REMEDIES = {
    LoopKind.OPTIMIZER: FUSED_OPTIMIZER,
    LoopKind.PARAMETERS: (*_LISTS, *COMPILE),
    LoopKind.LAYERS: (*COMPILE, *LARGER_BATCH),
    LoopKind.SEQUENCE: (*_LAYER, *COMPILE, *LARGER_BATCH),
    LoopKind.ELEMENTS: (*_ONE_CALL, *COMPILE),
    LoopKind.UNKNOWN: (*COMPILE, *_ONE_CALL),
}


class ManyTinyOperators(Rule):
    """A Python loop calls thousands of operators that compute next to nothing.

    What it finds
    -------------
    The same operators called again and again in a step, at least 16 times: for each parameter in an
    optimizer, for each sample of a batch, for each box of a loss, for each layer of a deep and
    narrow network.

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
    costs is subtracted, down to one microsecond for each call.

    On the CPU, expected is the dispatch for loops that one call can replace. Where elements can be
    processed together, half of the remaining time is added, because large operators also compute
    faster. High is the whole time of the loop. Layers and recurrent cells depend on each other, so
    only compiling them helps: half of their dispatch is expected, and low is 0. On a device, it is
    the idle time during the loop, a part of what launch-bound reports; loops over layers are left
    to that rule, and optimizers to unfused-optimizer.

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
        if loop.dispatch_ns < self.minimum_dispatch_share * total_ns(loop.spans):
            return None
        return _on_cpu(signals, loop)


def _on_cpu(signals: Signals, loop: OperatorLoop) -> Saving:
    whole_ns = total_ns(loop.spans)
    recording_ns = profiler_overhead(signals).within_ns(loop.spans)
    least_ns = min(_LEAST_CALL_NS * len(loop.rows), loop.dispatch_ns)
    computing_ns = whole_ns - loop.dispatch_ns
    replaceable_ns = computing_ns / 2 if loop.kind is LoopKind.ELEMENTS else 0.0
    low_ns, expected_ns, high_ns = (
        max(loop.dispatch_ns - factor * recording_ns, least_ns) + replaceable_ns
        for factor in _RECORDING_FACTORS
    )
    low, expected = _REALIZED.get(loop.kind, _COMPILED)
    expected *= 1 - 1 / loop.iterations  # one iteration is left
    if loop.kind in _REALIZED:
        high_ns += computing_ns - replaceable_ns
    return Saving(
        int(low * low_ns),
        int(expected * expected_ns),
        int(high_ns),
        loop.spans,
        "modeled" if loop.kind in _REALIZED else "heuristic",
    )


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
    first, _ = loop.passes[0]
    place = _place(signals, int(loop.rows[first]))
    duration = events.duration_ns[loop.rows]
    return Finding(
        summary=(
            f"{per_step(whole_ns, signals)} goes into {_SUBJECTS[loop.kind]}{place}:"
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
        remedies=_REMEDIES[loop.kind],
    )


def _place(signals: Signals, row: int) -> str:
    """` in train.py:12 step`: the line, module or annotation of an operator, if it is known."""
    forward = int(signals.origins.forward[row])
    row = forward if forward >= 0 else row
    place = source_line(signals, row) or signals.origins.module_of(row) or _annotation(signals, row)
    return f" in {place}" if place else ""


def _annotation(signals: Signals, row: int) -> str:
    """The innermost annotation around an event; empty if there is none."""
    events = signals.trace.events
    while row >= 0 and events.kind[row] != EventKind.ANNOTATION:
        row = int(events.parent[row])
    return signals.trace.name(row) if row >= 0 else ""


def _iterations(signals: Signals, loop: OperatorLoop) -> Table:
    """The operators that each pass of the loop calls in one iteration, in their order."""
    lines = tuple(
        (number, signals.trace.name(row), _place(signals, row).removeprefix(" in ") or None)
        for number, (first, period) in enumerate(loop.passes, start=1)
        for row in loop.rows[first : first + period].tolist()
    )
    return Table(
        "One iteration",
        (Column("pass", "Pass", "count"), Column("name", "Operator"), Column("place", "Where")),
        lines,
    )
