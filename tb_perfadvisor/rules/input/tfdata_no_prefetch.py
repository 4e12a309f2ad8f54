"""A tf.data pipeline works only while the step waits for it."""

from __future__ import annotations

from collections.abc import Iterable

from tb_perfadvisor.advice import advise
from tb_perfadvisor.rules.amounts import per_step
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.tfdata_pipelines import REPEATS, iterator_evidence, stalls_of
from tb_perfadvisor.rules.finding import Finding, Saving
from tb_perfadvisor.rules.savings.input_rate import REALIZED_SHARE
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.input.core_sharing import overlap_limit
from tb_perfadvisor.signals.input.tfdata import ASYNCHRONOUS, Pipelines, tfdata
from tb_perfadvisor.trace.intervals import Intervals, overlap_ns, total_ns
from tb_perfadvisor.whatif import Remove

# They pass elements on unchanged: the transformation below them is the last one.
_TRANSPARENT = REPEATS | {
    *("Root", "Model", "Options", "MaxIntraOpParallelism", "PrivateThreadPool", "Finalize"),
    *("AssertNext", "AssertCardinality", "FiniteTake", "FiniteSkip", "Take", "Skip"),
}
# Without a framework: JAX and PyTorch programs read through tf.data as well.


class TfdataNoPrefetch(Rule):
    """The tf.data pipeline prepares each batch only when the step asks for it.

    What it finds
    -------------
    A pipeline whose last transformation has no thread of its own: no prefetch and nothing else
    that works ahead, such as a parallel map or a fused map and batch.

    Why it matters
    --------------
    Input and step take turns: the device waits while the host prepares a batch, and the host waits
    while the device computes.

    How it is measured
    ------------------
    The names of the iterators show the chain as TensorFlow ran it, including a prefetch that it
    may have inserted. Expected and high are the part of each step's wait that the rest of the step
    could hide. Low is the same; on the CPU, where input and step share the cores, it is half of
    that.

    When to ignore
    --------------
    When there is no memory for a second batch.

    How to verify
    -------------
    `Prefetch` is the last iterator of the chain, and the wait falls to the time by which input
    takes longer than the step.

    References:
    ----------
    TensorFlow guide, "Better performance with the tf.data API", section on prefetching.
    """

    id = "tfdata-no-prefetch"
    title = "End the tf.data pipeline with a prefetch"
    category = "input"
    refines = "input-stall"
    needs = (Need.WORK, Need.INPUT, Need.ITERATORS)
    is_preview = False

    minimum_share = Limit(
        0.03,
        "share",
        "A buffer costs a few tens of microseconds per step, and input varies by a few percent.",
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding for each pipeline that does not work ahead of the step."""
        pipelines = tfdata(signals)
        for root in range(len(pipelines)):
            last = _last(pipelines, root) if pipelines.parent[root] < 0 else -1
            if last < 0 or pipelines.kind[last] in ASYNCHRONOUS:
                continue
            nodes = pipelines.below(root)
            claims = stalls_of(pipelines, nodes)
            most_ns = saved_ns = _hidden_ns(signals, claims)
            if (limit := overlap_limit(signals)) is not None:
                most_ns, saved_ns = min(most_ns, limit.high_ns), min(saved_ns, limit.expected_ns)
            if self.is_minor(saved_ns, signals):
                continue
            yield Finding(
                instance=f"it ends in {pipelines.kind[last]}",
                summary=(
                    f"A prefetch would hide {per_step(saved_ns, signals)} of the wait for input:"
                    f" the pipeline ends in {pipelines.kind[last]}, which prepares each batch only"
                    " when the step asks for it."
                ),
                saving=Saving(
                    int(REALIZED_SHARE * saved_ns) if signals.device.is_host_only else saved_ns,
                    saved_ns,
                    max(most_ns, saved_ns),
                    claims,
                    "measured",
                    (Remove(claims),),
                ),
                evidence=iterator_evidence(signals, nodes, claims),
                remedies=advise("prefetch"),
            )


def _last(pipelines: Pipelines, root: int) -> int:
    """The last transformation of the pipeline; -1 when it was not recorded."""
    node = root
    while pipelines.kind[node] in _TRANSPARENT:
        children = pipelines.children(node)
        if len(children) != 1:
            return -1
        node = children[0]
    return node


def _hidden_ns(signals: Signals, claims: Intervals) -> int:
    """How much of the waiting would be hidden if it overlapped the rest of each step."""
    steps, window = signals.steps, signals.attribution
    if not len(steps):
        waiting_ns = total_ns(claims)
        return min(waiting_ns, window.window_ns - waiting_ns)
    waiting_per_step_ns = overlap_ns(claims, steps.start_ns, steps.end_ns)
    working_ns = steps.duration_ns - waiting_per_step_ns
    return int(waiting_per_step_ns.clip(max=working_ns).sum())
