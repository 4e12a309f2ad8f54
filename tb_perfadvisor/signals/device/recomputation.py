"""Forward operators that the backward pass runs again: activation checkpointing.

Gradient formulas call basic operators, never the composite operators that modules call. So an
operator of a module inside an autograd node is recomputed, with or without reentrant checkpointing,
and so is whatever else in that node autograd prepares to differentiate.
`CheckpointFunctionBackward` also runs the gradients of its segment. These are autograd nodes inside
it, and not recomputed.

XLA names recomputation: operations that `jax.checkpoint` recomputes are under
`rematted_computation`, and operations that XLA duplicates to save memory have `.remat` in their
name.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tb_perfadvisor.patterns import regex
from tb_perfadvisor.signals.core.operators import shapes_of
from tb_perfadvisor.signals.core.placement import has_ancestor, innermost_marked
from tb_perfadvisor.signals.device.device_work import operators_of, work_rows
from tb_perfadvisor.signals.device.memory_use import memory_use
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.trace import EventKind
from tb_perfadvisor.trace.integer_groups import distinct, is_in, row_mask, unique_inverse
from tb_perfadvisor.trace.nesting import outermost
from tb_perfadvisor.trace.tables import Int32


class Recomputation(Struct, frozen=True):
    """Recomputed work in the used window; columns of shape (n,)."""

    rows: Int32
    """Device work, in order of start."""
    operators: Int32
    """The recomputed operator that launched each row; -1 for XLA operations."""
    launched_ns: int
    """Duration of what was launched in the used window, wherever it ran: the device may be steps
    behind the host."""


_MODULE_OPERATORS = regex(
    r"aten::(?:linear|conv[123]d|conv_transpose[123]d|layer_norm|group_norm|rms_norm|batch_norm"
    r"|instance_norm|embedding|dropout|softmax|log_softmax|multi_head_attention_forward"
    r"|gelu|relu_?|silu_?|scaled_dot_product_attention|max_pool[123]d|adaptive_avg_pool[123]d)$"
)
_NODE = regex(r"autograd::engine::evaluate_function: ")
# torch/utils/checkpoint.py, and the classes of the same name in Megatron and DeepSpeed.
_CHECKPOINT = regex(r"^.*\bCheckpointFunctionBackward$")
_AUTOGRAD = regex(r"^(?:autograd::|torch::autograd::|\w+Backward\d*$)")
# Sources: jax/_src/ad_checkpoint.py, and XLA's hlo_rematerialization.cc, which numbers its clones.
_REMATTED = "/rematted_computation/"
_CLONED = r"\.remat\d*(\.|$)"
# A fused attention's own backward kernels lie there, too (jax/experimental/pallas/ops/tpu).
_BACKWARD_KERNEL = regex(r"_(?:dkv|dq|bwd|backward)(?:_|$)")


@memoized
def recomputation(signals: Signals) -> Recomputation:
    """Device work that the backward pass recomputes."""
    if len(signals.trace.hlo_events.row):
        return _recomputed_by_xla(signals)
    return _recomputed_by_autograd(signals)


def _recomputed_by_xla(signals: Signals) -> Recomputation:
    trace, hlo = signals.trace, signals.trace.hlo
    is_recomputed = np.array(
        [
            (
                _is_rematted(path, product, inside)
                or (".remat" in name and re.search(_CLONED, name) is not None)
            )
            and _BACKWARD_KERNEL.search(name) is None
            for name, path, product, inside in zip(
                *map(trace.texts, (hlo.name, hlo.path, hlo.product, hlo.inside_paths)), strict=True
            )
        ],
        dtype=bool,
    )
    table = trace.hlo_events
    rows = distinct(table.row[is_recomputed[table.op]])
    if not signals.device.is_host_only:
        rows = rows[is_in(rows, signals.device.rows)]
    return _within_window(signals, rows, np.full(len(rows), -1, dtype=np.int32))


def _is_rematted(path: str, product: str, inside: str) -> bool:
    """Whether an operation recomputes: by the product in a fusion, else by most of what is inside.

    XLA also fuses recomputed operations with the backward pass, and names the fusion after one.
    """
    if "op_name=" in product:
        return _REMATTED in product
    return rematted_share(inside.split("\n") if inside else [path]) > 0.5


def rematted_share(paths: Sequence[str]) -> float:
    """The share of the framework's names that `jax.checkpoint` recomputes; 0 if there are none."""
    return sum(_REMATTED in path for path in paths) / len(paths) if paths else 0.0


def _recomputed_by_autograd(signals: Signals) -> Recomputation:
    """Device work of forward operators that run inside autograd nodes."""
    rows = signals.device.rows
    operator = _recomputed(signals, operators_of(signals, rows))
    return _within_window(signals, rows[operator >= 0], operator[operator >= 0])


def recomputes(signals: Signals, operators: Int32) -> NDArray[np.bool_]:
    """Whether each operator computes again what the forward pass has computed; shape (n,)."""
    recomputed: NDArray[np.bool_] = _recomputed_in_window(signals, operators) >= 0
    return recomputed


def _recomputed_in_window(signals: Signals, events: Int32) -> Int32:
    """As `_recomputed`, judged by all modules of the used window; shape (n,)."""
    modules = np.flatnonzero(_are_named(signals, _MODULE_OPERATORS)).astype(np.int32)
    modules = signals.steps.own(modules)
    together = np.concatenate((events, modules)).astype(np.int32)
    return _recomputed(signals, together)[: len(events)]


@memoized
def recomputed_bytes(signals: Signals) -> int | None:
    """Memory of what a step recomputes and its gradients need: what it would take to keep it all.

    That is what recomputed operators allocate and do not free again themselves; mean over the used
    steps. None if no single allocations were recorded.
    """
    use, window = memory_use(signals), signals.attribution
    if use is None or use.allocations is None or len(signals.trace.hlo_events.row):
        return None
    inside = (use.allocations.at_ns >= window.window_start_ns) & (
        use.allocations.at_ns < window.window_end_ns
    )
    allocations = use.allocations.select(inside & (use.allocations.row >= 0))
    operator = _recomputed_in_window(signals, allocations.row)
    end_ns = signals.trace.events.end_ns[np.maximum(operator, 0)]
    is_kept = (operator >= 0) & (allocations.freed_ns > end_ns)
    return int(allocations.bytes[is_kept].sum()) // signals.steps.count


def _recomputed(signals: Signals, operators: Int32) -> Int32:
    """The recomputed forward operator at or around each operator; -1 if it recomputes nothing.

    `operators` may be -1. Those of modules tell which autograd nodes recompute.
    """
    is_node = _are_named(signals, _NODE)
    node = innermost_marked(signals.trace.events.parent, operators, is_node)
    module_operators = _recomputed_modules(signals, operators, is_node)
    checkpoints = np.flatnonzero(is_node & _are_named(signals, _CHECKPOINT))
    recomputing = distinct(np.append(node[module_operators >= 0], checkpoints))
    if not recomputing.size:
        return module_operators
    forward = _outermost_forward(signals, operators)
    is_forward = (forward >= 0) & (node >= 0) & is_in(node, recomputing)
    # What encloses the node itself, such as an operator that calls autograd, is no part of it.
    is_forward &= forward > node
    recomputed = np.where(is_forward, forward, np.int32(-1))
    return np.where(module_operators >= 0, module_operators, recomputed).astype(np.int32)


def _recomputed_modules(signals: Signals, operators: Int32, is_node: NDArray[np.bool_]) -> Int32:
    """The operator of a module around each operator, if it is recomputed; else -1."""
    trace, events = signals.trace, signals.trace.events
    is_module = _are_named(signals, _MODULE_OPERATORS)
    known, inverse = unique_inverse(innermost_marked(events.parent, operators, is_module))
    in_backward = (known >= 0) & has_ancestor(events.parent, np.maximum(known, 0), is_node)
    # A recomputed operator has the shapes of a forward operator; a gradient has others.
    names, shapes = events.name[known].astype(np.int64), shapes_of(trace, known)
    key = names * (len(trace.strings) + 1) + shapes
    in_backward &= is_in(key, key[~in_backward & (known >= 0)])
    recomputed: Int32 = np.where(in_backward, known, -1).astype(np.int32)[inverse]
    return recomputed


def _outermost_forward(signals: Signals, operators: Int32) -> Int32:
    """The outermost forward operator around each operator, up to the next autograd node; or -1.

    Autograd numbers the operators that it will differentiate. Gradient formulas have no numbers.
    """
    trace, events = signals.trace, signals.trace.events
    sequence = trace.by_event(trace.operators.row, trace.operators.sequence, -1)
    is_autograd = _are_named(signals, _AUTOGRAD)
    is_forward = (sequence >= 0) & ~is_autograd & (events.kind == EventKind.OPERATOR)
    within = np.where(is_autograd, np.int32(-1), events.parent)
    within[(within >= 0) & is_autograd[within]] = -1
    found = outermost(within, is_forward)
    return np.where(operators >= 0, found[operators], -1).astype(np.int32)


def _within_window(signals: Signals, rows: Int32, operators: Int32) -> Recomputation:
    """Split recomputed work by where it ran, and by when it was launched."""
    events = signals.trace.events
    launched = signals.steps.owner[rows] >= 0
    inside = row_mask(len(events), work_rows(signals))[rows]
    return Recomputation(
        rows[inside], operators[inside], int(events.duration_ns[rows[launched]].sum())
    )


@memoized
def _are_named(signals: Signals, pattern: re.Pattern[str]) -> NDArray[np.bool_]:
    events, strings = signals.trace.events, signals.trace.strings
    rows = signals.trace.rows(EventKind.OPERATOR)
    names = events.name[rows]
    matching = [name for name in distinct(names).tolist() if pattern.match(strings[name])]
    return row_mask(len(events), rows[is_in(names, matching)])
