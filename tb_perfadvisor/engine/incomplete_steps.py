"""Notes on steps that are not all that the program does: pieces, parts, and what follows them."""

from __future__ import annotations

import re

from tb_perfadvisor.note import Note
from tb_perfadvisor.patterns import regex
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.core.steps.steps import recorded_span
from tb_perfadvisor.signals.steps.around_steps import after_step
from tb_perfadvisor.signals.work.roofline import MATRIX_FAMILIES
from tb_perfadvisor.trace import EventKind
from tb_perfadvisor.trace.integer_groups import distinct, is_in
from tb_perfadvisor.units import format_duration, format_share

COVERED_SHARE = 0.8
"""Inferred steps that cover less of the recording may not be the program's steps at all."""
_AFTER_SHARE = 0.01
"""Less than 1 % of the step is not worth a word."""

# Names of layers that multiply matrices, in the paths of TensorFlow's and JAX's operators.
_MULTIPLIES = regex(r"attention|dense|conv|matmul|einsum|dot_general|encoder|decoder|mlp", re.I)
_GRADIENTS = regex(r"gradient_tape|gradients/|transpose\(jvp|[Gg]rad(ient)?s?[/:]")


def incomplete_step_notes(signals: Signals) -> list[Note]:
    """What the used steps leave out."""
    return [*_on_coverage(signals), *_on_pieces(signals), *_on_what_follows(signals)]


def _on_coverage(signals: Signals) -> list[Note]:
    steps = signals.steps
    if not len(steps) or not (steps.is_inferred or steps.is_range):
        return []
    if signals.trace.totals is not None:
        return []
    start_ns, end_ns = recorded_span(signals.trace, signals.device)
    recorded_ns = end_ns - start_ns
    # Steps that are excluded by name are steps as well.
    known_ns = steps.window_ns * (1 + len(steps.excluded) / len(steps))
    if known_ns >= COVERED_SHARE * recorded_ns:
        return []
    # A program that starts loads its model, and computes little.
    before_ns = steps.window_start_ns - start_ns
    kernels, events = signals.trace.rows(EventKind.KERNEL), signals.trace.events
    kernels = kernels[events.start_ns[kernels] < steps.window_start_ns]
    is_start_up = before_ns >= COVERED_SHARE * (recorded_ns - steps.window_ns)
    is_start_up &= signals.device.index is not None
    is_start_up &= 2 * int(events.duration_ns[kernels].sum()) < before_ns
    rest = "What runs in the rest is not analyzed."
    if is_start_up:
        rest = f"The {format_duration(before_ns)} before them are start-up, and are not analyzed."
    return [
        Note(
            "partly-covered",
            "info" if is_start_up else "warning",
            f"The steps that were found cover {format_duration(steps.window_ns)} of the "
            f"{format_duration(recorded_ns)} that were recorded "
            f"({format_share(steps.window_ns / recorded_ns)}). {rest}",
            "Mark the steps of your program, and record only these.",
        )
    ]


def _on_pieces(signals: Signals) -> list[Note]:
    """That a step has no product, although the names of its operators are those of a model."""
    trace, steps, events = signals.trace, signals.steps, signals.trace.events
    if not len(steps) or signals.device.index is None or trace.totals is not None:
        return []
    if trace.source.framework not in ("tensorflow", "jax"):
        return []
    rows = steps.own(trace.rows(EventKind.KERNEL))
    family = trace.by_event(trace.kernels.row, trace.kernels.family, 0)[rows]
    if is_in(family, MATRIX_FAMILIES).any():
        return []
    launch = events.launched_by[rows]
    operator = signals.launching_operator[launch[launch >= 0]]
    names = {*trace.texts(distinct(events.name[operator[operator >= 0]]))}
    op = trace.operations(rows)
    names |= {*trace.texts(distinct(trace.hlo.path[distinct(op[op >= 0])]))}
    layer = next((name for name in sorted(names) if _MULTIPLIES.search(name)), "")
    if not layer or not any(_GRADIENTS.search(name) for name in names):
        return []
    return [
        Note(
            "piece-of-a-step",
            "error",
            "The step runs no matrix product, although its operators are those of a model that is "
            f"trained ({layer}). The recording holds a piece of a step, so its time and its "
            "findings say little about the program.",
            "Record several whole steps, and stop the profiler after the device has finished.",
        )
    ]


def _on_what_follows(signals: Signals) -> list[Note]:
    work = after_step(signals)
    time_ns = sum(entry.time_ns for entry in work)
    if time_ns < _AFTER_SHARE * signals.steps.window_ns or not time_ns:
        return []
    what = ", ".join(f"{entry.what}, {format_duration(entry.time_ns)}" for entry in work)
    return [Note("after-the-step", "info", f"After the step: {what}. It is not part of the step.")]
