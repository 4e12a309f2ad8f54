"""A compiled model that returns to Python many times in a step."""

from __future__ import annotations

from collections.abc import Iterable

from tb_perfadvisor.rules.amounts import count_per_step, per_step
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.tables import events_by_name
from tb_perfadvisor.rules.finding import Column, Finding, Remedy, Saving, costliest
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.host.compiled_regions import graph_breaks
from tb_perfadvisor.signals.recording.profiler_overhead import profiler_overhead
from tb_perfadvisor.trace.intervals import total_ns

_REMEDIES = (
    Remedy(
        text="Let the compiler say where it breaks, then mend those lines: prints, .item(), "
        "conditions on tensors, libraries that it cannot trace.",
        snippet=(
            "model = torch.compile(model, fullgraph=True)  # raises at the first break\n"
            "# TORCH_LOGS=graph_breaks python train.py lists them all"
        ),
        framework="pytorch",
        reference="https://pytorch.org/docs/stable/torch.compiler_faq.html",
    ),
    Remedy(
        text="Keep what must stay in Python out of the forward pass, at its end or beyond it.",
        snippet=(
            "loss = compiled(batch)\nlosses.append(loss.detach())  # .item() once, after the epoch"
        ),
        framework="pytorch",
        reference="https://pytorch.org/docs/stable/torch.compiler_faq.html",
    ),
)


class GraphBreaks(Rule):
    """A compiled function runs in many pieces, with Python between them.

    What it finds
    -------------
    Regions of torch.compile that lie in another one, three or more in a step: after a graph
    break the rest of a function is compiled as a function of its own, which the part before
    calls. The device idles until the host has gone through guards and Python and launches on.

    Why it matters
    --------------
    Each break costs tens of microseconds for its guards and its frame, ends fusion, and keeps
    the step from being captured in one CUDA graph.

    How it is measured
    ------------------
    The idle time, in gaps of up to two milliseconds, that ends with the first launch of a resumed
    region, less what synchronizations induce; it is not counted as launch-bound again. High is
    all of it, expected half, for a whole graph has launches too, low nothing. On the CPU no
    event tells compiled code that computes from the Python around it: nothing is said.

    When to ignore
    --------------
    When layers are compiled one by one on purpose: those regions lie beside each other, and are
    not counted.

    How to verify
    -------------
    The next profile has one compiled region where it had many, and fewer gaps.

    References:
    ----------
    PyTorch documentation, "Frequently Asked Questions on torch.compile: Graph breaks".
    """

    id = "graph-breaks"
    title = "Compile the model as one graph"
    category = "launch"
    needs = (Need.DEVICE_EVENTS, Need.HOST_EVENTS, Need.COMPILED_REGIONS)
    is_preview = True

    minimum_share = Limit(
        0.02, "share", "A few breaks cost up to a hundredth of a step that is long enough."
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when breaks hold the device up."""
        breaks = graph_breaks(signals)
        total = total_ns(breaks.idle)
        if self.is_minor(total, signals):
            return
        trace = signals.trace
        duration = trace.events.duration_ns[breaks.row]
        high = max(total - profiler_overhead(signals).within_ns(breaks.idle), 0)
        yield Finding(
            summary=(
                f"The device idles for {per_step(total, signals)} after graph breaks of compiled"
                f" code, {count_per_step(len(breaks.row), 'break', signals)}."
            ),
            saving=Saving(0, min(total // 2, high), total, breaks.idle, "heuristic"),
            evidence=(
                events_by_name(
                    "Compiled regions after a break",
                    "Region",
                    trace,
                    breaks.row,
                    ((Column("host_ns", "Time on the host", "ns"), duration),),
                ),
                costliest("The longest of them", signals.worker, breaks.row, duration),
            ),
            remedies=_REMEDIES,
        )
