"""Forward operators that the backward pass runs again: activation checkpointing.

Gradient formulas call basic operators, never the composite operators that modules call. So an
operator of a module inside an autograd node is recomputed, with or without reentrant checkpointing.
`CheckpointFunctionBackward` also runs the gradients of its segment. These are autograd nodes inside
it, and not recomputed.

XLA names recomputation: operations that `jax.checkpoint` recomputes are under
`rematted_computation`, and operations that XLA duplicates to save memory have `.remat` in their
name.
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
    """Recomputed work in the used window; columns of shape (n,)."""

    rows: Int32
    """Device work, in order of start."""
    operators: Int32
    """The recomputed operator that launched each row; -1 for XLA operations."""


@cache
def _module_operators() -> re.Pattern[str]:
    return re.compile(
        r"aten::(?:linear|conv[123]d|conv_transpose[123]d|layer_norm|group_norm|rms_norm|batch_norm"
        r"|instance_norm|embedding|dropout|softmax|log_softmax|multi_head_attention_forward"
        r"|gelu|relu_?|silu_?|scaled_dot_product_attention|max_pool[123]d|adaptive_avg_pool[123]d)$"
    )


# Sources: jax/_src/ad_checkpoint.py, and XLA's hlo_rematerialization.cc, which numbers its clones.
_REMATTED = "/rematted_computation/"
_CLONED = r"\.remat\d*(\.|$)"


@memoized
def recomputation(signals: Signals) -> Recomputation:
    """Device work that the backward pass recomputes."""
    if len(signals.trace.hlo_events.row):
        return _recomputed_by_xla(signals)
    return _recomputed_by_autograd(signals)


def _recomputed_by_xla(signals: Signals) -> Recomputation:
    trace = signals.trace
    names, paths = trace.texts(trace.hlo.name), trace.texts(trace.hlo.path)
    is_recomputed = np.array(
        [
            _REMATTED in path or (".remat" in name and re.search(_CLONED, name) is not None)
            for name, path in zip(names, paths, strict=True)
        ],
        dtype=bool,
    )
    table = trace.hlo_events
    rows = np.intersect1d(table.row[is_recomputed[table.op]], work_rows(signals))
    return Recomputation(rows, np.full(len(rows), -1, dtype=np.int32))


def _recomputed_by_autograd(signals: Signals) -> Recomputation:
    """Device work of forward operators that run inside autograd nodes."""
    trace, events = signals.trace, signals.trace.events
    rows, operators = work_rows(signals), launchers(signals)
    is_module = _are_named(signals, _module_operators())
    is_node = _are_named(signals, re.compile(r"autograd::engine::evaluate_function: "))
    module_operators = _innermost_marked(signals, operators, is_module)
    known, inverse = unique_inverse(module_operators)
    in_backward = (known >= 0) & has_ancestor(events.parent, np.maximum(known, 0), is_node)
    # A recomputed operator has the shapes of a forward operator; a gradient has others.
    names, shapes = events.name[known].astype(np.int64), shapes_of(trace, known)
    key = names * (len(trace.strings) + 1) + shapes
    in_backward &= is_in(key, key[~in_backward & (known >= 0)])
    is_recomputed = in_backward[inverse]
    return Recomputation(rows[is_recomputed], module_operators[is_recomputed])


def _are_named(signals: Signals, pattern: re.Pattern[str]) -> NDArray[np.bool_]:
    events, strings = signals.trace.events, signals.trace.strings
    is_operator = events.kind == EventKind.OPERATOR
    names = distinct(events.name[is_operator]).tolist()
    matching = [name for name in names if pattern.match(strings[name])]
    named: NDArray[np.bool_] = is_operator & is_in(events.name, matching)
    return named


def _innermost_marked(signals: Signals, operators: Int32, is_marked: NDArray[np.bool_]) -> Int32:
    """The innermost marked event at or around each operator; -1 for none."""
    parent = signals.trace.events.parent
    ancestor = operators.astype(np.int32)
    while True:
        climbs = (ancestor >= 0) & ~is_marked[ancestor]
        if not climbs.any():
            return ancestor
        ancestor = np.where(climbs, parent[ancestor], ancestor)
