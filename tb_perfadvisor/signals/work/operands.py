"""Which tensors a PyTorch operator reads and writes, from the shapes and types of its inputs.

A profile records shapes, not which tensor is which. `fused_traffic` infers who hands what to whom.
"""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import Any, Final, NamedTuple

import msgspec

from tb_perfadvisor.signals.core.operator_shapes import Shape
from tb_perfadvisor.signals.work.operator_inputs import Inputs, parse_inputs
from tb_perfadvisor.signals.work.operator_work import (
    BINARY,
    COMPARISONS,
    REDUCTIONS,
    TERNARY,
    UNARY,
    broadcast,
    work_of_operator,
)


class Extent(NamedTuple):
    """How large a tensor is. Views of it keep both numbers."""

    elements: int
    item_bytes: int
    """0 if it was not recorded, as for the members of a list."""

    @property
    def size_bytes(self) -> int:
        """In memory."""
        return self.elements * self.item_bytes


class Operands(NamedTuple):
    """The tensors of one execution of an operator."""

    reads: tuple[Extent, ...]
    """What another operator may just have computed."""
    stored: tuple[Extent, ...]
    """What it reads from memory in any case: saved for the backward pass, rows of a table."""
    writes: tuple[Extent, ...]
    fusible: bool
    """Whether a compiler can make it part of a kernel with others."""
    complete: bool = False
    """Whether nothing of its result is known before all of its input was read, such as of a sum
    over all rows: what follows is another kernel, which reads its inputs from memory."""
    passes: int = 1
    """How often it reads its inputs. A normalization that first takes statistics of all of them is
    elementwise work in its last pass, which other operators can be a part of."""
    copies: bool = False
    """Whether it only moves elements. Programs do not copy what they have just copied."""

    @property
    def traffic_bytes(self) -> int:
        """What it moves when it runs by itself."""
        read = sum(extent.size_bytes for extent in (*self.reads, *self.stored)) * self.passes
        return read + sum(extent.size_bytes for extent in self.writes)


_SAVED: Final = frozenset(name for name in BINARY.split() if name.endswith("_backward"))
_ELEMENTWISE: Final = frozenset(
    f"{UNARY} {BINARY} {TERNARY} clamp isnan isinf isfinite polar logit nan_to_num sigmoid_ "
    "logaddexp hypot sinc xlogy addcmul softshrink hardshrink bitwise_left_shift glu".split()
)
_COMPARISONS: Final = frozenset(COMPARISONS.split())
_REDUCTIONS: Final = frozenset(f"{REDUCTIONS} logsumexp var_mean std_mean".split())
_ROWS: Final = frozenset(
    ("_softmax", "_safe_softmax", "_log_softmax", "native_layer_norm", "_fused_rms_norm")
)
_ROWS_BACKWARD: Final = frozenset(
    ("_softmax_backward_data", "_log_softmax_backward_data", "native_layer_norm_backward",
     "_fused_rms_norm_backward")
)  # fmt: skip
_WHOLE: Final = frozenset(
    ("native_group_norm", "cudnn_batch_norm", "native_batch_norm", "miopen_batch_norm",
     "batch_norm")
)  # fmt: skip
_WHOLE_BACKWARD: Final = frozenset(f"{name}_backward" for name in _WHOLE)
_GATHERS: Final = {"embedding": 1, "index_select": 2, "gather": 2}
_JOINS: Final = frozenset(("cat", "stack", "_cat"))
_FILLS: Final = frozenset(("fill", "zero", "arange", "bernoulli"))
_IS_TRAINING: Final = {"native_batch_norm": 5, "batch_norm": 5, "miopen_batch_norm": 5}
_LONGEST_ROW: Final = 32_768
"""Elements of a row that one thread block holds; a longer row is read twice."""


@lru_cache(maxsize=16_384)  # layers and steps repeat
def operands_of(name: str, shapes: str, dtypes: str, values: str) -> Operands | None:
    """The tensors that one execution reads and writes.

    Args:
        name: PyTorch's name of the operator, such as `aten::mul`.
        shapes: Shapes of its inputs, as JSON.
        dtypes: Types of its inputs, separated by semicolons.
        values: Values of inputs that are not arrays, as JSON; empty if not recorded.

    Returns:
        None if the shapes do not tell. Operators that no compiler fuses, such as matrix products,
        are not `fusible`.
    """
    operator = name.removeprefix("aten::")
    try:
        if operator in _JOINS:
            return _join(shapes)
        inputs = parse_inputs(shapes, dtypes, values)
        if name.startswith("aten::"):
            found = _fusible(operator.removesuffix("_"), operator, inputs)
            if found is not None:
                return found
    except (LookupError, ValueError, TypeError):
        return None
    return _opaque(name, shapes, dtypes, values, inputs)


def _fusible(base: str, operator: str, inputs: Inputs) -> Operands | None:
    """The operands of an operator that compilers fuse; None for others."""
    arrays = tuple(tensor for tensor in inputs.tensors if tensor is not None)
    extents = tuple(Extent(array.elements, array.item_bytes) for array in arrays)
    if base == "copy":
        is_cast = len(arrays) > 1 and arrays[0].dtype != arrays[1].dtype
        return Operands(extents[1:2], (), extents[:1], fusible=True, copies=not is_cast)
    if base == "clone":
        return Operands(extents[:1], (), extents[:1], fusible=True, copies=True)
    if base in _FILLS:
        return Operands((), (), extents[:1], fusible=True, copies=True)
    if base in _GATHERS:
        index = inputs.tensor(_GATHERS[base])
        width = inputs.tensor(0).shape[1] if base == "embedding" else 1
        found = Extent(index.elements * width, inputs.tensor(0).item_bytes)
        place = Extent(index.elements, index.item_bytes)
        return Operands((), (found, place), (found,), fusible=True)
    if not extents:
        return None
    if operator in _ROWS or operator in _ROWS_BACKWARD:
        return _row_wise(operator, inputs, extents)
    if operator in _WHOLE or operator in _WHOLE_BACKWARD:
        return _statistics(operator, inputs, extents)
    if base in _REDUCTIONS:
        x = inputs.tensor(0)
        count, is_row = _reduced(x.shape, inputs.value(1))
        written = (Extent(count, x.item_bytes),)
        return Operands(extents[:1], (), written, fusible=True, complete=not is_row)
    if operator == "native_dropout":
        mask = Extent(extents[0].elements, 1)
        return Operands(extents[:1], (), (extents[0], mask), fusible=True)
    if base in _COMPARISONS:
        elements = prod(broadcast([array.shape for array in arrays]))
        return Operands(extents, (), (Extent(elements, 1),), fusible=True)
    if base in _ELEMENTWISE or base in ("where", "masked_fill"):
        elements = prod(broadcast([array.shape for array in arrays]))
        typed = [array for array in arrays if array.shape] or arrays
        result = Extent(elements, max(array.item_bytes for array in typed))
        if base in _SAVED:
            return Operands(extents[:1], extents[1:], (result,), fusible=True)
        return Operands(extents, (), (result,), fusible=True)
    return None


def _row_wise(operator: str, inputs: Inputs, extents: tuple[Extent, ...]) -> Operands:
    is_long = inputs.tensor(0).shape[-1] > _LONGEST_ROW
    if operator in _ROWS:
        passes = 2 if is_long else 1
        return Operands(extents[:1], extents[1:], extents[:1], fusible=True, passes=passes)
    # The gradients of weights are sums over rows: another pass.
    passes = 2 if is_long or "norm" in operator else 1
    return Operands(extents[:1], extents[1:2], extents[:1], fusible=True, passes=passes)


def _statistics(operator: str, inputs: Inputs, extents: tuple[Extent, ...]) -> Operands:
    if operator in _WHOLE_BACKWARD:
        return Operands(extents[:1], extents[1:2], extents[:1], fusible=True, passes=2)
    is_applied = operator in _IS_TRAINING and inputs.value(_IS_TRAINING[operator]) == "False"
    if is_applied:
        return Operands(extents[:1], extents[1:], extents[:1], fusible=True)
    return Operands(extents[:1], extents[1:], extents[:1], fusible=True, passes=2)


def _reduced(shape: Shape, dims: str) -> tuple[int, bool]:
    """Number of results of a reduction, and whether each depends on one row of the memory.

    Args:
        shape: Of its input.
        dims: The recorded dimensions, such as `[-1]`; empty if unknown.
    """
    try:
        value = msgspec.json.decode(dims)
    except msgspec.DecodeError:
        return 1, True
    chosen: list[Any] = value if isinstance(value, list) else [value]
    if not chosen or not all(
        type(dim) is int and -len(shape) <= dim < len(shape) for dim in chosen
    ):
        return 1, False
    reduced = {dim % len(shape) for dim in chosen}
    result = prod(size for dim, size in enumerate(shape) if dim not in reduced)
    # Sizes of 1 do not matter for the order in memory.
    kept = [dim for dim, size in enumerate(shape) if dim not in reduced and size > 1]
    is_row = max(kept, default=-1) < min(reduced) and prod(shape) <= result * _LONGEST_ROW
    return result, is_row


def _join(shapes: str) -> Operands:
    """Concatenation: the members of the list, whose type is not recorded."""
    inputs = msgspec.json.decode(shapes)
    members = tuple(Extent(prod(shape), 0) for shape in inputs[0] if shape)
    whole = Extent(sum(member.elements for member in members), 0)
    return Operands(members, (), (whole,), fusible=True, copies=True)


def _opaque(name: str, shapes: str, dtypes: str, values: str, inputs: Inputs) -> Operands | None:
    """An operator that reads its inputs from memory, such as a matrix product or attention."""
    extents = tuple(
        Extent(array.elements, array.item_bytes) for array in inputs.tensors if array is not None
    )
    if not extents:
        return None
    work = work_of_operator(name, shapes, dtypes, values)
    written: tuple[Extent, ...] = ()
    if work is not None and work.matmul is not None and work.matmul.flop:
        product = work.matmul
        written = (Extent(product.batch * product.m * product.n, extents[0].item_bytes),)
    elif "attention" in name and "backward" not in name:
        written = extents[:1]
    return Operands(extents, (), written, fusible=False)
