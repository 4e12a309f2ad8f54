"""Forward operators that the backward pass runs again: activation checkpointing.

Formulas of gradients call plain operators, never the composed ones that modules call. A module's
operator inside an autograd node is therefore a forward pass run again, with or without
reentrant checkpointing; `CheckpointFunctionBackward` runs the gradients of its part within
itself, which are autograd nodes again, and not recomputed.

XLA's operations tell it themselves: what `jax.checkpoint` computes again lies under
`rematted_computation`, and what XLA does again of its own accord, to save memory, has `.remat` in
its name.
"""

from __future__ import annotations

import re
from functools import cache

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tb_perfadvisor.signals.core.operator_shapes import shapes_of
from tb_perfadvisor.signals.core.placement import has_ancestor
from tb_perfadvisor.signals.device.device_work import launchers, work_rows
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.trace import EventKind
from tb_perfadvisor.trace.integer_groups import distinct, is_in, unique_inverse
from tb_perfadvisor.trace.tables import Int32


class Recomputation(Struct, frozen=True):
    """What is computed again in the used window."""

    rows: Int32
    """Device work, in order of start."""
    operators: Int32
    """The recomputed operator that launched each; -1 where it is an XLA operation."""


@cache
def _modules_operators() -> re.Pattern[str]:
    return re.compile(
        r"aten::(?:linear|conv[123]d|conv_transpose[123]d|layer_norm|group_norm|rms_norm|batch_norm"
        r"|instance_norm|embedding|dropout|softmax|log_softmax|multi_head_attention_forward"
        r"|gelu|relu_?|silu_?|scaled_dot_product_attention|max_pool[123]d|adaptive_avg_pool[123]d)$"
    )


# jax/_src/ad_checkpoint.py, and XLA's hlo_rematerialization.cc, which numbers what it clones.
_REMATTED = "/rematted_computation/"
_CLONED = r"\.remat\d*(\.|$)"


@memoized
def recomputation(signals: Signals) -> Recomputation:
    """Device work that the backward pass does again."""
    if len(signals.trace.hlo_events.row):
        return _of_xla(signals)
    return _of_autograd(signals)


def _of_xla(signals: Signals) -> Recomputation:
    trace = signals.trace
    names, paths = trace.texts(trace.hlo.name), trace.texts(trace.hlo.path)
    is_again = np.array(
        [
            _REMATTED in path or (".remat" in name and re.search(_CLONED, name) is not None)
            for name, path in zip(names, paths, strict=True)
        ],
        dtype=bool,
    )
    table = trace.hlo_events
    rows = np.intersect1d(table.row[is_again[table.op]], work_rows(signals))
    return Recomputation(rows, np.full(len(rows), -1, dtype=np.int32))


def _of_autograd(signals: Signals) -> Recomputation:
    """Device work of forward operators that run inside autograd nodes."""
    trace, events = signals.trace, signals.trace.events
    rows, operators = work_rows(signals), launchers(signals)
    is_module = _are_named(signals, _modules_operators())
    is_node = _are_named(signals, re.compile(r"autograd::engine::evaluate_function: "))
    top = _marked_around(signals, operators, is_module)
    known, inverse = unique_inverse(top)
    again = (known >= 0) & has_ancestor(events.parent, np.maximum(known, 0), is_node)
    # Run again means the same as before: a gradient that is a product has other shapes.
    names, shapes = events.name[known].astype(np.int64), shapes_of(trace, known)
    key = names * (len(trace.strings) + 1) + shapes
    again &= is_in(key, key[~again & (known >= 0)])
    is_again = again[inverse]
    return Recomputation(rows[is_again], top[is_again])


def _are_named(signals: Signals, pattern: re.Pattern[str]) -> NDArray[np.bool_]:
    events, strings = signals.trace.events, signals.trace.strings
    is_operator = events.kind == EventKind.OPERATOR
    names = distinct(events.name[is_operator]).tolist()
    matching = [name for name in names if pattern.match(strings[name])]
    named: NDArray[np.bool_] = is_operator & is_in(events.name, matching)
    return named


def _marked_around(signals: Signals, operators: Int32, is_marked: NDArray[np.bool_]) -> Int32:
    """The innermost marked event at or around each operator; -1 for none."""
    parent = signals.trace.events.parent
    at = operators.astype(np.int32)
    while True:
        climbs = (at >= 0) & ~is_marked[at]
        if not climbs.any():
            return at
        at = np.where(climbs, parent[at], at)
