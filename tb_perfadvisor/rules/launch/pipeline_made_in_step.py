"""Each step makes an input pipeline of its own."""

from __future__ import annotations

import re
from collections.abc import Iterable

import numpy as np

from tb_perfadvisor.advice import advise
from tb_perfadvisor.rules.amounts import count_per_step, per_step
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.made import step_loops
from tb_perfadvisor.rules.evidence.source_lines import lines_tables
from tb_perfadvisor.rules.evidence.tables import events_by_name
from tb_perfadvisor.rules.finding import Column, Finding, Saving
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.workload.workload import Part, workload
from tb_perfadvisor.trace import EventKind
from tb_perfadvisor.trace.event_names import named
from tb_perfadvisor.trace.intervals import minus, total_ns, union

_MAKES = re.compile(r"^EagerExecute: (?:MakeIterator|\w+Dataset(?:V\d+)?)$")
_ITERATOR = re.compile(r"^EagerExecute: MakeIterator$")
_FUNCTION = re.compile(r"^Eager(?:Local)?Execute: __inference_\w+$")
_EXPECTED = 0.9
"""What replaces it also checks the inputs and calls a function."""


class PipelineMadeInStep(Rule):
    """Each step makes a tf.data pipeline, as each call of Keras's `predict` does.

    What it finds
    -------------
    Eager operators that make datasets and an iterator, in every step, around the compiled function
    that does the work: `predict()`, `evaluate()` or `fit()` called for one batch or one request
    after another, or a dataset that is made inside of the loop.

    Why it matters
    --------------
    Making a pipeline traces its functions anew, optimizes their graphs, starts threads and ends
    them, and Keras runs callbacks around it. That takes tens of milliseconds, however small the
    batch is.

    How it is measured
    ------------------
    All of the step but the calls of compiled functions, if an iterator and datasets are made at
    least once per step. High is all of it, nine tenths are expected, and half of it is low.

    When to ignore
    --------------
    When a step of the profile is a whole pass over the data.

    How to verify
    -------------
    The next profile has no `MakeIterator` in its steps.

    References:
    ----------
    Keras documentation, `Model.predict`: "for small numbers of inputs that fit in one batch,
    directly use `__call__()` for faster execution"; TensorFlow guide, "tf.data: Build TensorFlow
    input pipelines".
    """

    id = "pipeline-made-in-step"
    title = "Make the input pipeline once, not in every step"
    category = "launch"
    needs = (Need.WORK, Need.HOST_EVENTS, Need.STEPS)
    is_preview = False

    minimum_share = Limit(0.1, "share", "Below a tenth of the step, it is no matter of requests.")

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when every step makes a pipeline."""
        trace, steps = signals.trace, signals.steps
        events, rows = trace.events, trace.rows(EventKind.ANNOTATION, EventKind.OPERATOR)
        made = steps.own(rows[named(trace, rows, _MAKES)])
        iterators = made[named(trace, made, _ITERATOR)]
        functions = rows[named(trace, rows, _FUNCTION)]
        if len(iterators) < steps.count or len(made) <= len(iterators) or not len(functions):
            return
        window = signals.attribution
        working = union(events.start_ns[functions], events.end_ns[functions])
        claims = minus(np.array([[window.window_start_ns, window.window_end_ns]]), working)
        total = total_ns(claims)
        if self.is_minor(total, signals):
            return
        is_keras = workload(signals).has(Part.KERAS)
        duration_ns = events.duration_ns[made]
        yield Finding(
            title="Call the model itself, not predict(), for each batch" if is_keras else "",
            instance=f"{count_per_step(len(iterators), 'pipeline', signals)}",
            summary=(
                f"{per_step(total, signals)} goes into everything but the compiled function. It"
                f" makes {count_per_step(len(iterators), 'pipeline', signals)} for the data, whose"
                " functions are traced anew, and ends them again."
            ),
            saving=Saving(total // 2, round(_EXPECTED * total), total, claims, "measured"),
            evidence=(
                events_by_name(
                    "Operators that make the pipeline",
                    "Operator",
                    trace,
                    made,
                    ((Column("host_ns", "Time on the host", "ns"), duration_ns),),
                ),
                *step_loops(signals),
                *lines_tables(trace.facts.lines),
            ),
            remedies=advise("model-called-directly", "pipeline-before-loop"),
        )
