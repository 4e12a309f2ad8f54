"""One process that scatters batches to several devices and gathers their outputs."""

from __future__ import annotations

from collections.abc import Iterable

from tb_perfadvisor.advice import advise
from tb_perfadvisor.rules.amounts import per_step
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.finding import Column, Finding, Saving, Table, costliest
from tb_perfadvisor.signals import Cause, Need, Signals
from tb_perfadvisor.trace import EventKind, Trace
from tb_perfadvisor.trace.integer_groups import distinct, is_in
from tb_perfadvisor.trace.intervals import intersect, overlap_ns, total_ns, union
from tb_perfadvisor.trace.tables import Int32

_FORWARD = "DataParallel.forward"
# Autograd functions in torch/nn/parallel/_functions.py; their backward nodes count as well.
_MOVING = ("Broadcast", "Scatter", "Gather", "ReduceAddCoalesced")


class DataParallel(Rule):
    """`nn.DataParallel` moves the model and the batch in every step, from one process.

    What it finds
    -------------
    Steps that run `nn.DataParallel` on several devices, and the time that the busiest device loses
    while parameters are broadcast, batches scattered, outputs gathered and gradients summed.

    Why it matters
    --------------
    A single process with a single interpreter feeds all devices, copies the parameters to each of
    them in every step, and collects everything on the first one. With one process per device, the
    replicas stay in place and gradients are reduced during the backward pass.

    How it is measured
    ------------------
    Idle time and exposed copies of the busiest device inside the operators that broadcast, scatter,
    gather and sum. Expected and high are all of it; low is half, because gradients must still be
    reduced.

    When to ignore
    --------------
    In scripts that run once, for a few minutes.

    How to verify
    -------------
    The broadcasts are gone, every device is busy for about the same time, and steps are shorter.

    References:
    ----------
    PyTorch documentation, "Use nn.parallel.DistributedDataParallel instead of multiprocessing
    or nn.DataParallel".
    """

    id = "data-parallel"
    title = "Replace nn.DataParallel with one process per device"
    category = "communication"
    needs = (Need.WORK, Need.DEVICE_EVENTS, Need.HOST_EVENTS, Need.STEPS, Need.PYTORCH)

    minimum_share = Limit(0.02, "share", "A smaller gain does not justify a new launch script.")

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when DataParallel feeds several devices."""
        trace, attribution = signals.trace, signals.attribution
        if signals.device.used < 2 or len(_named(trace, (_FORWARD,))) == 0:
            return
        rows = _named(trace, _MOVING)
        events = trace.events
        moving = union(events.start_ns[rows], events.end_ns[rows])
        lost = attribution.of(
            Cause.COPIES,
            Cause.LAUNCHING,
            Cause.FRAMEWORK,
            Cause.PYTHON,
            Cause.SYNCHRONIZATION,
            Cause.UNEXPLAINED,
        )
        claims = intersect(lost, moving)
        lost_ns = total_ns(claims)
        if self.is_minor(lost_ns, signals):
            return
        inside_ns = overlap_ns(claims, events.start_ns[rows], events.end_ns[rows])
        names = events.name[rows]
        yield Finding(
            instance=f"one process drives {signals.device.used} devices",
            summary=(
                f"nn.DataParallel drives {signals.device.used} devices from one process: the"
                f" busiest one loses {per_step(lost_ns, signals)} while tensors are moved."
            ),
            saving=Saving(lost_ns // 2, lost_ns, lost_ns, claims, "measured"),
            evidence=(
                Table(
                    "Operators that move tensors",
                    (
                        Column("name", "Operator"),
                        Column("count", "Count", "count"),
                        Column("lost_ns", "Device idle or copying", "ns"),
                    ),
                    tuple(
                        (
                            trace.strings[name],
                            int((names == name).sum()),
                            int(inside_ns[names == name].sum()),
                        )
                        for name in distinct(names).tolist()
                    ),
                ),
                costliest("Costliest of these operators", signals.worker, rows, inside_ns),
            ),
            remedies=advise("process-per-device", "distributed-sampler"),
        )


def _named(trace: Trace, wanted: tuple[str, ...]) -> Int32:
    """Host events with these names, or of the autograd nodes that undo them."""
    rows = trace.rows(EventKind.OPERATOR, EventKind.ANNOTATION)
    names = trace.events.name[rows]
    matching = [
        name
        for name in distinct(names).tolist()
        if trace.strings[name].removeprefix("autograd::engine::evaluate_function: ")
        in {*wanted, *(f"{text}Backward" for text in wanted)}
    ]
    return rows[is_in(names, matching)]
