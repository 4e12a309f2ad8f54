"""On the CPU, the optimizer updates one parameter after the other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from tb_perfadvisor.advice import advise
from tb_perfadvisor.rules.amounts import share_of_each
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.made import made_tables
from tb_perfadvisor.rules.evidence.tables import events_by_name
from tb_perfadvisor.rules.finding import Column, Finding, Saving, costliest
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.host.optimizer_loops import HostUpdates, host_updates
from tb_perfadvisor.signals.recording.profiler_overhead import profiler_overhead
from tb_perfadvisor.trace.intervals import total_ns
from tb_perfadvisor.units import format_duration

_SAVED: Mapping[str, tuple[float, float, float]] = MappingProxyType(
    {
        "Adam": (0.6, 0.75, 0.9),
        "AdamW": (0.6, 0.75, 0.9),
        "Adagrad": (0.45, 0.68, 0.88),
        "SGD": (0.1, 0.35, 0.65),
    }
)
"""The part of `Optimizer.step` that the fused form saves: low, expected, high. Measured by
`cost_models/fused_optimizers.py` with PyTorch 2.13 on two cores, for 4 to 100 tensors of 64 to four
million numbers: 0.63 to 0.89, 0.50 to 0.86, and 0.15 to 0.65 with momentum. Without momentum, the
fused SGD took 0.7 to 1.7 times as long."""


class OptimizerLoop(Rule):
    """On the CPU, the optimizer runs a dozen operators for each parameter.

    What it finds
    -------------
    Time in `Optimizer.step` of Adam, AdamW, Adagrad, or SGD with momentum, in a program on the CPU
    that does not use the fused form.

    Why it matters
    --------------
    Adam runs twelve operators for each parameter. Small parameters cost mostly Python and dispatch,
    and large ones are read and written a dozen times. The fused form reads and writes each once, in
    one operator, on all cores.

    How it is measured
    ------------------
    The time in `Optimizer.step` without the estimated cost of recording it. Of that, the fused form
    of Adam saved 63 to 89 % in 16 measured cases, that of Adagrad 50 to 86 %, and that of SGD with
    momentum 15 to 65 %. SGD without momentum does not get faster.

    When to ignore
    --------------
    When the program needs `differentiable=True`, or PyTorch is older than 2.4.

    How to verify
    -------------
    The profile shows `aten::_fused_adam_` or its like in `Optimizer.step`, which takes a fraction
    of the time.

    References:
    ----------
    PyTorch documentation, torch.optim, on foreach and fused implementations.
    """

    id = "optimizer-loop"
    title = "Update all parameters in one operator"
    category = "launch"
    needs = (Need.WORK, Need.HOST_EVENTS, Need.PYTORCH)
    is_preview = False

    minimum_share = Limit(
        0.02, "share", "Changing one argument of the optimizer is worth 2 % of a step."
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when the fused form of the optimizer would save time."""
        updates = host_updates(signals)
        if updates is None or updates.is_fused:
            return
        if updates.name == "SGD" and not updates.has_momentum:
            return
        whole_ns = total_ns(updates.steps)
        own_ns = whole_ns - profiler_overhead(signals).within_ns(updates.steps)
        low, expected, high = _SAVED[updates.name]
        if self.is_minor(int(expected * own_ns), signals):
            return
        yield _finding(
            signals,
            updates,
            Saving(
                int(low * own_ns),
                int(expected * own_ns),
                int(high * whole_ns),
                updates.steps,
                "modeled",
            ),
        )


def _finding(signals: Signals, updates: HostUpdates, saving: Saving) -> Finding:
    duration = signals.trace.events.duration_ns[updates.operators]
    steps = max(len(signals.steps), 1)
    made = signals.trace.facts.program.all_made("optimizer")
    usual = format_duration(total_ns(updates.steps) / steps)
    count = len(updates.operators) // steps
    return Finding(
        instance=f"{updates.name}.step takes {usual}",
        summary=(
            f"{share_of_each(total_ns(updates.steps), signals)} goes into {count:,} operators that"
            f" {updates.name} calls, parameter by parameter. One fused operator updates all of"
            " them."
        ),
        saving=saving,
        evidence=(
            events_by_name(
                "Operators that the optimizer calls",
                "Operator",
                signals.trace,
                updates.operators,
                ((Column("host_ns", "Time on the host", "ns"), duration),),
            ),
            costliest("Longest of these operators", signals.worker, updates.operators, duration),
            *made_tables(each for each in made if each.name == updates.name),
        ),
        remedies=advise("fused-host-optimizer", optimizer=updates.name),
    )
