"""What runs after the work of a single recorded step: callbacks, summaries, checkpoints."""

from __future__ import annotations

import re

import numpy as np
from msgspec import Struct

from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.trace import EventKind
from tb_perfadvisor.trace.intervals import total_ns, union

# Operators that TensorFlow's summary writers, checkpoints and `evaluate` run, by their names in
# TensorFlow's op registry, and functions of Keras.
_KINDS = (
    ("TensorBoard callback", re.compile(r"Summary|summary")),
    ("checkpoint", re.compile(r"SaveV2|SaveSlices|MergeV2Checkpoints|checkpoint", re.IGNORECASE)),
    ("evaluation", re.compile(r"__inference_(?:multi_step_on_iterator_eval|test_function)")),
)


class AfterStep(Struct, frozen=True):
    """Work of the step's thread after the step."""

    what: str
    """In plain words; a name of the profile if it is of no known kind."""
    time_ns: int


@memoized
def after_step(signals: Signals) -> tuple[AfterStep, ...]:
    """Work of the step's thread after a single step of TensorFlow, the longest kind first."""
    trace, steps, events = signals.trace, signals.steps, signals.trace.events
    if trace.source.framework != "tensorflow" or len(steps) != 1 or steps.track < 0:
        return ()
    end_ns = int(steps.marker_end_ns[0])
    rows = trace.rows(EventKind.ANNOTATION, EventKind.OPERATOR, EventKind.RUNTIME)
    rows = rows[(events.track[rows] == steps.track) & (events.start_ns[rows] >= end_ns)]
    found: dict[str, list[int]] = {}
    for row in rows.tolist():
        name = trace.name(row)
        what = next((label for label, pattern in _KINDS if pattern.search(name)), "")
        if what:
            found.setdefault(what, []).append(row)
    work = []
    for what, members in found.items():
        own = np.array(members, dtype=np.int32)
        time_ns = total_ns(union(events.start_ns[own], events.end_ns[own]))
        work.append(AfterStep(what, time_ns))
    return tuple(sorted(work, key=lambda entry: -entry.time_ns))
