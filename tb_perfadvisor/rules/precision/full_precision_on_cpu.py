"""32-bit layers on a CPU that multiplies bfloat16 faster."""

from __future__ import annotations

from collections.abc import Iterable

from tb_perfadvisor.advice import advise
from tb_perfadvisor.rules.amounts import per_step
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.tables import events_by_name
from tb_perfadvisor.rules.finding import Column, Finding, Saving, costliest
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.work.layer_forms import in_bfloat16
from tb_perfadvisor.units import format_share


class FullPrecisionOnCpu(Rule):
    """A PyTorch program on the CPU multiplies 32-bit numbers, and the CPU has bfloat16.

    What it finds
    -------------
    Matrix products, convolutions, recurrent layers and attention in 32 bits, in a program on a
    processor that multiplies bfloat16 (AVX512-BF16 or AMX), with the batch norms and activations
    between them.

    Why it matters
    --------------
    Such processors multiply bfloat16 at twice the rate of 32-bit numbers or more, and read half of
    the bytes.

    How it is measured
    ------------------
    Each kind of layer is expected to keep a share of its time: matrix products 52 %, convolutions
    60 %, LSTM layers 62 %, batch norms 40 %. Autocast adds 40 microseconds to each product, and
    three times the bytes of the weights at 23 GB/s to each step. The shares and costs were measured
    with PyTorch 2.13 on one core with AVX512-BF16. Products of less than a tenth of a millisecond
    do not get faster, so programs that consist of them are left alone.

    When to ignore
    --------------
    When the results need 32 bits. Compare the loss over some hundred steps.

    How to verify
    -------------
    The operators' types are `c10::BFloat16`, and the step is shorter.

    References:
    ----------
    PyTorch documentation, "Automatic Mixed Precision package", on CPU operators; Intel, "Intel
    architecture instruction set extensions", on AVX512_BF16.
    """

    id = "full-precision-on-cpu"
    title = "Multiply in bfloat16, which this CPU does faster"
    category = "precision"
    needs = (Need.WORK, Need.HOST_EVENTS, Need.PYTORCH, Need.CPU_PROGRAM)
    is_preview = False

    minimum_share = Limit(
        0.05, "share", "Comparing the losses of two trainings is not worth it for less than 5 %."
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when 32-bit products take long enough to be faster in bfloat16."""
        form = in_bfloat16(signals)
        if form is None or self.is_minor(form.expected_ns, signals):
            return
        now_ns = int(form.now_ns.sum())
        yield Finding(
            instance=f"{format_share(now_ns / signals.attribution.window_ns)} of each step",
            summary=(
                f"{per_step(now_ns, signals)} goes into layers that compute in 32 bits. This"
                " processor multiplies bfloat16 about twice as fast; casts cost part of that."
            ),
            saving=Saving(form.low_ns, form.expected_ns, form.high_ns, form.spans, "modeled"),
            evidence=(
                events_by_name(
                    "32-bit layers",
                    "Operator",
                    signals.trace,
                    form.rows,
                    ((Column("own_ns", "Own time", "ns"), form.now_ns),),
                ),
                costliest("Longest of these operators", signals.worker, form.rows, form.now_ns),
            ),
            remedies=advise("bfloat16", "bfloat16-weights", "bfloat16-if-possible", device="cpu"),
            severity="medium",
        )
