"""PyTorch programs on the CPU that compute in 64-bit numbers."""

from __future__ import annotations

from collections.abc import Iterable

from tb_perfadvisor.advice import advise
from tb_perfadvisor.rules.amounts import per_step
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.tables import events_by_name
from tb_perfadvisor.rules.finding import Column, Finding, Saving, costliest
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.work.layer_forms import in_32_bits
from tb_perfadvisor.units import format_share


class DoublePrecisionOnCpu(Rule):
    """A PyTorch program on the CPU computes in 64-bit numbers.

    What it finds
    -------------
    Operators of a PyTorch program on the CPU that read 64-bit floating point numbers. The usual
    source is NumPy, whose arrays have 64 bits unless told otherwise, and a model that was turned to
    64 bits to match them.

    Why it matters
    --------------
    The numbers take twice the memory and bandwidth, vector instructions compute half as many of
    them at once, and the fast kernels for convolutions and recurrent layers are for 32 bits only.

    How it is measured
    ------------------
    Matrix products and elementwise operators are expected to keep half of their time in 32 bits,
    convolutions 35 %. Low and high are the least and the most that was measured with PyTorch 2.13
    on one core. Operators of less than 20 microseconds consist of dispatch and count as they are.

    When to ignore
    --------------
    When the computation needs 64 bits, as in simulations and in solvers of linear systems.

    How to verify
    -------------
    The operators' types are `float`, the step is shorter, and the results are close enough.

    References:
    ----------
    PyTorch documentation, "Tensor attributes", torch.dtype; NumPy documentation, "Data types".
    """

    id = "double-precision-on-cpu"
    title = "Compute in 32 bits unless the results need more"
    category = "precision"
    needs = (Need.WORK, Need.HOST_EVENTS, Need.PYTORCH, Need.CPU_PROGRAM)

    minimum_share = Limit(
        0.05, "share", "Comparing results of two precisions is not worth it for less than 5 %."
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when operators on 64-bit numbers take a good part of the step."""
        form = in_32_bits(signals)
        if form is None or self.is_minor(form.expected_ns, signals):
            return
        now_ns = int(form.now_ns.sum())
        yield Finding(
            instance=f"{format_share(now_ns / signals.attribution.window_ns)} of each step",
            summary=(
                f"{per_step(now_ns, signals)} goes into operators on 64-bit numbers. In 32 bits,"
                " they move half of the bytes and compute twice as many numbers at once."
            ),
            saving=Saving(form.low_ns, form.expected_ns, form.high_ns, form.spans, "modeled"),
            evidence=(
                events_by_name(
                    "Operators on 64-bit numbers",
                    "Operator",
                    signals.trace,
                    form.rows,
                    ((Column("own_ns", "Own time", "ns"), form.now_ns),),
                ),
                costliest("Longest of these operators", signals.worker, form.rows, form.now_ns),
            ),
            remedies=advise("single-precision"),
        )
