"""Steps on the CPU that PyTorch runs operator by operator, although it could compile them."""

from __future__ import annotations

from collections.abc import Iterable

from tb_perfadvisor.advice import advise
from tb_perfadvisor.rules.amounts import count_per_step, per_step
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.made import step_loops
from tb_perfadvisor.rules.evidence.tables import events_by_name
from tb_perfadvisor.rules.finding import Column, Finding, Saving, costliest
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.host.eager_steps import MOST_PART, eager_steps
from tb_perfadvisor.signals.launch.compiled_regions import compiled_regions
from tb_perfadvisor.trace.intervals import total_ns

_MANY_CALLS = 4
"""Calls of recurrent layers in a step; an encoder and a decoder make two."""


class EagerSteps(Rule):
    """PyTorch's step on the CPU is mostly Python, dispatch and operators that compute little.

    What it finds
    -------------
    Steps of a program on the CPU with so many small operators, other than matrix products and
    layers of a library, that a compiled step would be shorter by more than the limit.

    Why it matters
    --------------
    Each operator costs some microseconds of Python, dispatch and allocation, and an autograd node
    in the backward pass as much again. A compiled function runs a chain of them as one loop.

    How it is measured
    ------------------
    Python between operators, dispatch and tiny operators are one cause, and are priced together:
    3.3 microseconds for each outermost operator and autograd node that would be fused, minus 4.2
    for each gradient that is accumulated and 54 for each call of the compiled model (20 without a
    backward pass). That is fitted to small models with and without `torch.compile`, and never more
    than the recorded time of these operators. High is 2.6 times as much, as measured for loops over
    samples. Low is 0, because a model of small linear layers may get slower. Loops that one
    operator can replace are left to many-tiny-operators, and updates to optimizer-loop.

    When to ignore
    --------------
    When shapes change from step to step, so that the model would be compiled again and again, or
    when the program runs for less than a minute, which compiling may take.

    How to verify
    -------------
    The profile has regions of torch.compile, far fewer operators, and a shorter step.

    References:
    ----------
    PyTorch documentation, `torch.compile`; "PyTorch Performance Tuning Guide".
    """

    id = "eager-steps"
    title = "Compile the small operators of the step"
    category = "launch"
    needs = (Need.WORK, Need.HOST_EVENTS, Need.PYTORCH, Need.CPU_PROGRAM)
    is_preview = False

    minimum_share = Limit(
        0.1, "share", "What compiling saves of a small step is known to a tenth of the step."
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when compiling would shorten the step."""
        eager = eager_steps(signals)
        if eager is None or len(compiled_regions(signals).row):
            return
        total = total_ns(eager.spans)
        expected_ns = min(eager.saving_ns, total)
        if self.is_minor(expected_ns, signals):
            return
        duration = signals.trace.events.duration_ns[eager.rows]
        yield Finding(
            instance=count_per_step(len(eager.rows), "operator", signals),
            summary=(
                f"{per_step(total, signals)} goes into"
                f" {count_per_step(len(eager.rows), 'small operator', signals)} and the Python"
                " between them. Compiled, they run as a few loops."
            ),
            saving=Saving(
                0,
                expected_ns,
                min(int(MOST_PART * expected_ns), total),
                eager.spans,
                "modeled",
            ),
            evidence=(
                events_by_name(
                    "Operators that compiling fuses",
                    "Operator",
                    signals.trace,
                    eager.rows,
                    ((Column("host_ns", "Time on the host", "ns"), duration),),
                ),
                costliest("Longest of these operators", signals.worker, eager.rows, duration),
                *step_loops(signals),
            ),
            remedies=advise(*_changes(eager.recurrent_calls)),
        )


def _changes(recurrent_calls: int) -> tuple[str, ...]:
    """What helps: torch.compile leaves recurrent layers, and their models, as they are."""
    first = "whole-sequence" if recurrent_calls >= _MANY_CALLS else "compile"
    return (first, "larger-batch")
