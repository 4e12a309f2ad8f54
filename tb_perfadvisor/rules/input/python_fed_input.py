"""Python code produces the input of a tf.data pipeline."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

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
from tb_perfadvisor.signals.core.causes import Cause
from tb_perfadvisor.signals.input.tfdata import tfdata
from tb_perfadvisor.signals.input.tfdata_functions import python_functions
from tb_perfadvisor.trace.intervals import (
    EMPTY,
    Intervals,
    clip,
    intersect,
    join,
    overlap_ns,
    total_ns,
    union,
)

_GENERATOR = "Generator"
_IDLE = 0.1
"""The share of the cores' time that a machine idles while it is busy: between two schedulings."""


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
    same work takes time in any language. Where the cores are busy all the time, Python's thread
    also takes its part of them while the step computes, and high is all of its time. TensorFlow's
    own generators, which hand batches to several devices, run no Python and do not count.

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
        events, is_busy = signals.trace.events, _is_busy(signals)
        start, end = events.start_ns[rows], events.end_ns[rows]
        made = join(union(start, end), _generators(signals) if is_busy and len(rows) else EMPTY)
        waited = intersect(stalls_of(pipelines, range(len(pipelines))), made)
        work = signals.attribution.intervals[Cause.HOST_COMPUTE]
        beside = intersect(work, made) if is_busy else EMPTY
        waited_ns = total_ns(waited)
        # Python's thread takes its part of the cores from those of the step.
        taken_ns = total_ns(beside) // ((pipelines.cores or 1) + 1)
        if self.is_minor(waited_ns + taken_ns, signals):
            return
        claims = join(waited, beside)
        if taken_ns:
            window = signals.attribution
            claims = clip(made, window.window_start_ns, window.window_end_ns)
        window_ns = signals.attribution.window_ns
        low_ns = saving_of_doubled_input_rate_ns(waited_ns, window_ns)
        expected_ns = waited_ns
        if not signals.device.is_host_only:
            expected_ns = bet_on_rate_ns(waited_ns, low_ns)
        low_ns = saving_of_doubled_input_rate_ns(waited_ns + taken_ns, window_ns)
        source = "a generator" if _GENERATOR in pipelines.kind else "Python code in a map"
        calls = count_per_step(int((signals.steps.owner[rows] >= 0).sum()), "call", signals)
        also = f" It also takes {per_step(taken_ns, signals)} of the step's cores."
        yield Finding(
            instance=calls,
            summary=(
                f"{per_step(waited_ns, signals)} is spent waiting for {source} ({calls}), which"
                f" runs one call at a time.{also if taken_ns else ''}"
            ),
            saving=Saving(
                low_ns,
                expected_ns + taken_ns,
                total_ns(claims),
                claims,
                "modeled" if taken_ns else "measured",
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
            remedies=advise(
                *(("arrays-as-tensors",) if _GENERATOR in pipelines.kind else ()),
                "tensorflow-input",
                "parallel-python-input",
            ),
        )


def _is_busy(signals: Signals) -> bool:
    """Whether the step computes on cores of which none is idle."""
    load = signals.trace.facts.load
    return signals.device.is_host_only and load is not None and load.idle <= _IDLE


def _generators(signals: Signals) -> Intervals:
    """When generators' stages run, which hand over one sample at a time and go with them."""
    pipelines, events = tfdata(signals), signals.trace.events
    stages = [pipelines.call_rows[n] for n, kind in enumerate(pipelines.kind) if kind == _GENERATOR]
    rows = np.concatenate(stages) if stages else np.empty(0, dtype=np.int32)
    return union(events.start_ns[rows], events.end_ns[rows])
