"""Images with channels first, in a program on the CPU."""

from __future__ import annotations

from collections.abc import Iterable

from tb_perfadvisor.advice import advise
from tb_perfadvisor.rules.amounts import per_step
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.made import made_tables
from tb_perfadvisor.rules.evidence.tables import events_by_name
from tb_perfadvisor.rules.finding import Column, Finding, Saving, costliest
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.work.layer_forms import in_channels_last


class ChannelsFirstOnCpu(Rule):
    """On the CPU, pooling and normalizing images is slower with channels first.

    What it finds
    -------------
    Max pooling, batch norms and convolutions of a PyTorch program on the CPU whose images have
    their channels first, which is PyTorch's default.

    Why it matters
    --------------
    With channels last, the numbers that a processor's wide instructions work on lie side by side.
    Convolutions convert the layout inside; pooling and normalizing do not.

    How it is measured
    ------------------
    With channels last, max pooling took 19 to 36 % of its time, batch norms 47 to 105 %, and
    convolutions 73 to 107 %, in measurements with PyTorch 2.13 on one core. Expected are 27, 65 and
    95 %. Recordings by `perfadvisor run` tell the layout of the model's filters. In others, half of
    that is expected, and low is 0.

    When to ignore
    --------------
    When the model reshapes its images itself, in ways that need channels first.

    How to verify
    -------------
    `aten::max_pool2d_with_indices` and `aten::native_batch_norm` take a fraction of their time.

    References:
    ----------
    PyTorch tutorials, "Channels Last Memory Format in PyTorch".
    """

    id = "channels-first-on-cpu"
    title = "Keep images with their channels last"
    category = "compute"
    needs = (Need.WORK, Need.HOST_EVENTS, Need.PYTORCH, Need.CPU_PROGRAM)
    is_preview = False

    minimum_share = Limit(
        0.05, "share", "Below that, conversions that remain may cost as much as is gained."
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when pooling and normalizing take long enough."""
        form = in_channels_last(signals)
        if form is None or self.is_minor(form.expected_ns, signals):
            return
        models = signals.trace.facts.program.all_made("model")
        yield Finding(
            summary=(
                f"{per_step(int(form.now_ns.sum()), signals)} goes into pooling, normalizing and"
                " convolving images with channels first. On the CPU, these are faster with channels"
                " last."
            ),
            saving=Saving(form.low_ns, form.expected_ns, form.high_ns, form.spans, "modeled"),
            evidence=(
                events_by_name(
                    "Layers that depend on the layout",
                    "Operator",
                    signals.trace,
                    form.rows,
                    ((Column("own_ns", "Own time", "ns"), form.now_ns),),
                ),
                costliest("Longest of these operators", signals.worker, form.rows, form.now_ns),
                *made_tables(model for model in models if model.number("convolutions")),
            ),
            remedies=advise("channels-last"),
            severity="medium",
        )
