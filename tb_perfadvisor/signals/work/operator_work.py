"""The work of PyTorch operators, from the shapes, types and values of their inputs.

Elementwise operators count one FLOP per element; normalization and softmax count several.

Which tensors a PyTorch operator reads and writes, from the shapes and types of its inputs.

A profile records shapes, not which tensor is which. `fused_traffic` infers who hands what to whom.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from math import prod
from typing import Any, Final, NamedTuple

import msgspec

from tb_perfadvisor.patterns import regex
from tb_perfadvisor.signals.core.operators import Shape
from tb_perfadvisor.signals.work import matrix_work as matrix
from tb_perfadvisor.signals.work.operator_inputs import Inputs, Work, common_format, parse_inputs
from tb_perfadvisor.trace import KernelFamily


@lru_cache(maxsize=16_384)  # layers and steps repeat
def work_of_operator(name: str, shapes: str, dtypes: str, values: str) -> Work | None:
    """The work of one execution; None if the shapes do not tell or the operator has no formula.

    `name` is PyTorch's, such as `aten::mm`. Shapes and types are those of the inputs, as JSON and
    separated by semicolons. `values` are those of inputs that are not arrays, as JSON; empty if not
    recorded.
    """
    formula = _formula(name)
    if formula is None:
        return None
    try:
        work = formula(parse_inputs(shapes, dtypes, values))
    except (LookupError, ValueError, TypeError, ZeroDivisionError):
        return None  # the inputs do not fit the operator
    return work if work.flop > 0 or work.traffic_bytes > 0 else None


# --- memory-bound operators -------------------------------------------------------------------

_LAYER_NORM_FLOP: Final = 8
"""Per element: mean 1, variance 3 (subtract, square, add), scale 2, weight and bias 2."""
_SOFTMAX_FLOP: Final = 5
"""Per element: maximum 1, subtract 1, exponential 1, sum 1, divide 1."""


def _row_wise(
    family: KernelFamily, read: tuple[int, ...], flop_per_element: int
) -> Callable[[Inputs], Work]:
    """The formula for operators that read some arrays and write one like the first."""

    def formula(inputs: Inputs) -> Work:
        arrays = [inputs.tensor(index) for index in read]
        first = arrays[0]
        traffic = sum(array.size_bytes for array in arrays) + first.size_bytes
        return Work(family, first.elements * flop_per_element, traffic, common_format(*arrays))

    return formula


def _elementwise(count: int) -> Callable[[Inputs], Work]:
    """The formula for elementwise operators on the first `count` inputs, arrays or numbers."""

    def formula(inputs: Inputs) -> Work:
        arrays = [tensor for tensor in inputs.tensors[:count] if tensor is not None]
        shape = broadcast([array.shape for array in arrays])
        # Scalars adopt the type of the arrays.
        typed = [array for array in arrays if array.shape] or arrays
        result_bytes = prod(shape) * max(array.item_bytes for array in typed)
        traffic = sum(array.size_bytes for array in arrays) + result_bytes
        return Work(KernelFamily.ELEMENTWISE, prod(shape), traffic, common_format(*typed))

    return formula


def _comparison(inputs: Inputs) -> Work:
    arrays = [tensor for tensor in inputs.tensors[:2] if tensor is not None]
    count = prod(broadcast([array.shape for array in arrays]))
    traffic = sum(array.size_bytes for array in arrays) + count
    return Work(KernelFamily.ELEMENTWISE, count, traffic, common_format(*arrays))


def broadcast(shapes: list[Shape]) -> Shape:
    """The shape of an elementwise result."""
    rank = max(len(shape) for shape in shapes)
    padded = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    return tuple(0 if 0 in sizes else max(sizes) for sizes in zip(*padded, strict=True))


def _copy(inputs: Inputs) -> Work:
    """`copy_(target, source)`."""
    target, source = inputs.tensor(0), inputs.tensor(1)
    return Work(KernelFamily.COPY, 0, target.size_bytes + source.size_bytes, "")


def _clone(inputs: Inputs) -> Work:
    return Work(KernelFamily.COPY, 0, 2 * inputs.tensor(0).size_bytes, "")


def _fill(inputs: Inputs) -> Work:
    return Work(KernelFamily.ELEMENTWISE, 0, inputs.tensor(0).size_bytes, "")


def _reduction(inputs: Inputs) -> Work:
    x = inputs.tensor(0)
    return Work(KernelFamily.REDUCTION, x.elements, x.size_bytes, common_format(x))


def _embedding(inputs: Inputs) -> Work:
    weight, index = inputs.tensor(0), inputs.tensor(1)
    rows = index.elements * weight.shape[1] * weight.item_bytes
    return Work(KernelFamily.EMBEDDING, 0, 2 * rows + index.size_bytes, "")


def _compiled(inputs: Inputs) -> Work:
    """A kernel compiled by Inductor: its arguments are the arrays that it reads and writes."""
    arrays = [tensor for tensor in inputs.tensors if tensor is not None and tensor.shape]
    elements = max(array.elements for array in arrays)
    return Work(KernelFamily.ELEMENTWISE, elements, sum(array.size_bytes for array in arrays), "")


# --- the table --------------------------------------------------------------------------------

_N = KernelFamily.NORMALIZATION
UNARY = (
    "abs neg exp exp2 expm1 log log2 log10 log1p sqrt rsqrt square sin cos tan tanh sigmoid "
    "log_sigmoid relu relu6 gelu silu mish elu selu softplus hardtanh hardswish hardsigmoid "
    "leaky_relu threshold clamp_min clamp_max erf erfc reciprocal sign floor ceil round trunc "
    "bitwise_not logical_not"
)
BINARY = (
    "add sub rsub mul div true_divide floor_divide pow maximum minimum fmax fmin remainder fmod "
    "atan2 masked_fill bitwise_and bitwise_or bitwise_xor threshold_backward gelu_backward "
    "silu_backward tanh_backward sigmoid_backward hardtanh_backward leaky_relu_backward "
    "elu_backward hardswish_backward mish_backward native_dropout_backward"
)
COMPARISONS = "eq ne lt le gt ge logical_and logical_or logical_xor isclose"
TERNARY = "addcmul addcdiv lerp where"
REDUCTIONS = "sum mean max min amax amin any all prod norm linalg_vector_norm var std argmax argmin"


def _products() -> dict[str, Callable[[Inputs], Work]]:
    """Matrix products, convolutions and attention."""
    plain = matrix.Convolution(stride=3, padding=2, dilation=4, groups=5)
    with_bias = matrix.Convolution(stride=4, padding=3, dilation=5, groups=6)
    fused = matrix.Convolution(stride=3, padding=4, dilation=5, groups=6)
    upwards = matrix.Convolution(4, 2, dilation=5, groups=6, output_padding=3)
    general = matrix.Convolution(3, 4, 5, groups=8, transposed=6, output_padding=7)
    attentions = {
        "_scaled_dot_product_flash_attention": matrix.Attention(0, 4, lengths_second=False),
        "_scaled_dot_product_flash_attention_for_cpu": matrix.Attention(0, 4, lengths_second=False),
        "_scaled_dot_product_flash_attention_for_cpu_backward": matrix.Attention(
            1, 7, lengths_second=False, is_backward=True
        ),
        "_scaled_dot_product_efficient_attention": matrix.Attention(0, 6, lengths_second=False),
        "_scaled_dot_product_fused_attention_overrideable": matrix.Attention(
            0, 5, lengths_second=False
        ),
        "_scaled_dot_product_cudnn_attention": matrix.Attention(0, 6, lengths_second=False),
        "_scaled_dot_product_cudnn_attention_backward": matrix.Attention(
            1, 14, lengths_second=False, is_backward=True
        ),
        "_flash_attention_forward": matrix.Attention(
            0, 8, lengths_second=True, packed=3, longest=5
        ),
        "_flash_attention_backward": matrix.Attention(
            1, 11, lengths_second=True, is_backward=True, packed=6, longest=8
        ),
        "_efficient_attention_forward": matrix.Attention(
            0, 9, lengths_second=True, packed=4, longest=6
        ),
        "_efficient_attention_backward": matrix.Attention(
            1, 14, lengths_second=True, is_backward=True, packed=6, longest=8
        ),
    }
    return {
        **dict.fromkeys(("mm", "bmm", "_int_mm", "_scaled_mm"), matrix.mm),
        **dict.fromkeys(("addmm", "baddbmm", "_addmm_activation"), matrix.addmm),
        **dict.fromkeys(("linear", "_linear"), matrix.linear),
        "mv": matrix.mv,
        "_grouped_mm": matrix.grouped(2),
        "_scaled_grouped_mm": matrix.grouped(4),
        "cudnn_convolution": matrix.forward_convolution(plain),
        "cudnn_convolution_relu": matrix.forward_convolution(fused),
        "cudnn_convolution_transpose": matrix.forward_convolution(upwards),
        **dict.fromkeys(
            ("miopen_convolution", "miopen_depthwise_convolution", "mkldnn_convolution"),
            matrix.forward_convolution(with_bias),
        ),
        **dict.fromkeys(
            ("convolution", "_convolution", "convolution_overrideable"),
            matrix.forward_convolution(general),
        ),
        "convolution_backward": matrix.convolution_backward,
        **dict.fromkeys(
            ("cudnn_convolution_backward", "miopen_convolution_backward"),
            matrix.library_convolution_backward,
        ),
        **{name: matrix.attention(at) for name, at in attentions.items()},
    }


def _bound_by_memory() -> dict[str, Callable[[Inputs], Work]]:
    return {
        "native_layer_norm": _row_wise(_N, (0,), _LAYER_NORM_FLOP),
        "_fused_rms_norm": _row_wise(_N, (0,), _LAYER_NORM_FLOP),
        "native_group_norm": _row_wise(_N, (0,), _LAYER_NORM_FLOP),
        "native_layer_norm_backward": _row_wise(_N, (0, 1), 2 * _LAYER_NORM_FLOP),
        "native_group_norm_backward": _row_wise(_N, (0, 1), 2 * _LAYER_NORM_FLOP),
        **dict.fromkeys(
            ("cudnn_batch_norm", "native_batch_norm", "miopen_batch_norm"),
            _row_wise(_N, (0,), _LAYER_NORM_FLOP),
        ),
        **dict.fromkeys(
            ("cudnn_batch_norm_backward", "native_batch_norm_backward",
             "miopen_batch_norm_backward"),
            _row_wise(_N, (0, 1), 2 * _LAYER_NORM_FLOP),
        ),
        **dict.fromkeys(
            ("_softmax", "_log_softmax"), _row_wise(KernelFamily.SOFTMAX, (0,), _SOFTMAX_FLOP)
        ),
        **dict.fromkeys(
            ("_softmax_backward_data", "_log_softmax_backward_data"),
            _row_wise(KernelFamily.SOFTMAX, (0, 1), _SOFTMAX_FLOP - 1),
        ),
        **dict.fromkeys(UNARY.split(), _elementwise(1)),
        **dict.fromkeys(BINARY.split(), _elementwise(2)),
        **dict.fromkeys(TERNARY.split(), _elementwise(3)),
        "clamp": _elementwise(3),
        **dict.fromkeys(COMPARISONS.split(), _comparison),
        **dict.fromkeys(REDUCTIONS.split(), _reduction),
        **dict.fromkeys(("fill", "zero"), _fill),
        "copy": _copy,
        "clone": _clone,
        "embedding": _embedding,
    }  # fmt: skip


# Operators of other packages. Source: flash_attn/flash_attn_interface.py of flash-attn 2.7 and 2.8.
_PACKAGED: Final = {
    "flash_attn::_flash_attn_forward": matrix.attention(
        matrix.Attention(0, 5, lengths_second=True, window=6)
    ),
    "flash_attn::_flash_attn_varlen_forward": matrix.attention(
        matrix.Attention(0, 9, lengths_second=True, packed=3, longest=5, window=10)
    ),
    "flash_attn::_flash_attn_varlen_backward": matrix.attention(
        matrix.Attention(
            1, 15, lengths_second=True, is_backward=True, packed=9, longest=11, window=16
        )
    ),
    "flash_attn::_flash_attn_backward": matrix.attention(
        matrix.Attention(1, 11, lengths_second=True, is_backward=True, window=12)
    ),
}
_PRODUCTS: Final = _products()
_TABLE: Final = {**_PRODUCTS, **_bound_by_memory()}
_TEMPLATE: Final = regex(r"triton_tem_(?!.*(?:conv|attention)).*_(?:add|badd)?(b)?mm(?:_|$)")
_COMPILED: Final = ("triton_poi_", "triton_red_", "triton_per_")


def _formula(name: str) -> Callable[[Inputs], Work] | None:
    if name.startswith("aten::"):
        operator = name.removeprefix("aten::")
        # `add_` is `add` in place; a leading underscore is part of the name.
        return _TABLE.get(operator) or _TABLE.get(operator.removesuffix("_"))
    if name in _PACKAGED:
        return _PACKAGED[name]
    if match := _TEMPLATE.match(name):
        return partial(matrix.template, is_batched=bool(match[1]))
    return _compiled if name.startswith(_COMPILED) else None


def is_product(name: str) -> bool:
    """Whether there is a formula for a matrix product, convolution or attention of this name."""
    if name in _PACKAGED or _TEMPLATE.match(name):
        return True
    return name.startswith("aten::") and name.removeprefix("aten::") in _PRODUCTS


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
    """The tensors that one execution reads and writes; None if the shapes do not tell.

    Arguments are those of `work_of_operator`. Operators that no compiler fuses, such as matrix
    products, are not `fusible`.
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
        return _row_wise_operands(operator, inputs, extents)
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


def _row_wise_operands(operator: str, inputs: Inputs, extents: tuple[Extent, ...]) -> Operands:
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

    `shape` is that of its input. `dims` are the recorded dimensions, such as `[-1]`; empty if
    unknown.
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
