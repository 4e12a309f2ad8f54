"""Python code produces the input of a tf.data pipeline."""

from __future__ import annotations

from collections.abc import Iterable

from tb_perfadvisor.advice import advise
from tb_perfadvisor.rules.amounts import count_per_step, per_step
from tb_perfadvisor.rules.base import Rule
from tb_perfadvisor.rules.evidence.tfdata_pipelines import MINIMUM_SHARE, iterator_table, stalls_of
from tb_perfadvisor.rules.finding import Finding, Saving, costliest
from tb_perfadvisor.rules.savings.input_rate import (
    bet_on_rate_ns,
    saving_of_doubled_input_rate_ns,
)
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.input.tfdata import tfdata
from tb_perfadvisor.signals.input.tfdata_functions import python_functions
from tb_perfadvisor.trace.intervals import intersect, overlap_ns, total_ns, union


class PythonFedInput(Rule):
    """The step waits for input that Python code produces: a generator, or a function in a map.

    What it finds
    -------------
    `from_generator`, `py_function` and `numpy_function` in a tf.data pipeline, running while the
    step waits for input.

    Why it matters
    --------------
    Python's global lock lets one call compute at a time, whatever num_parallel_calls says, and the
    thread that runs the training loop needs the lock as well.

    How it is measured
    ------------------
    The time in which the step waits for the pipeline while a Python function of it runs: that is
    high and expected. Low is half of what a pipeline of twice the rate would save, because the
    same work takes time in any language. TensorFlow's own generators, which hand batches to
    several devices, run no Python and do not count.

    When to ignore
    --------------
    When the function only waits for a service or a simulator: then more parallel calls do help.

    How to verify
    -------------
    The operations of the pipeline contain no `PyFunc`, and the wait falls.

    References:
    ----------
    TensorFlow API documentation, "tf.numpy_function" and "tf.data.Dataset.from_generator", on
    their limits; TensorFlow guide, "Better performance with the tf.data API".
    """

    id = "python-fed-input"
    title = "Make input with TensorFlow's operations, not in Python"
    category = "input"
    refines = "input-stall"
    needs = (Need.WORK, Need.INPUT, Need.ITERATORS)
    is_preview = False

    minimum_share = MINIMUM_SHARE

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when Python keeps the step waiting."""
        rows, pipelines = python_functions(signals), tfdata(signals)
        events = signals.trace.events
        start, end = events.start_ns[rows], events.end_ns[rows]
        waiting = stalls_of(pipelines, range(len(pipelines)))
        claims = intersect(waiting, union(start, end))
        claimed_ns = total_ns(claims)
        if self.is_minor(claimed_ns, signals):
            return
        low_ns = saving_of_doubled_input_rate_ns(claimed_ns, signals.attribution.window_ns)
        is_used = signals.steps.owner[rows] >= 0
        source = "a generator" if "Generator" in pipelines.kind else "Python code in a map"
        yield Finding(
            instance=count_per_step(int(is_used.sum()), "call", signals),
            summary=(
                f"{per_step(claimed_ns, signals)} is spent waiting for {source}"
                f" ({count_per_step(int(is_used.sum()), 'call', signals)}), which runs one call at"
                " a time."
            ),
            saving=Saving(
                low_ns,
                claimed_ns if signals.device.is_host_only else bet_on_rate_ns(claimed_ns, low_ns),
                claimed_ns,
                claims,
                "measured",
            ),
            evidence=(
                costliest(
                    "Python calls that the step waits for longest",
                    signals.worker,
                    rows,
                    overlap_ns(claims, start, end),
                ),
                iterator_table(signals),
            ),
            remedies=advise("tensorflow-input", "parallel-python-input"),
        )
