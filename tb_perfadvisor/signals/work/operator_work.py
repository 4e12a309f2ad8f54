"""The work of PyTorch operators, from the shapes, types and values of their inputs.

Elementwise operators count one FLOP per element; normalization and softmax count several.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache, partial
from math import prod
from typing import Final

from tb_perfadvisor.signals.core.operator_shapes import Shape
from tb_perfadvisor.signals.work import matrix_work as matrix
from tb_perfadvisor.signals.work.operator_inputs import Inputs, common_format, parse_inputs
from tb_perfadvisor.signals.work.required_work import Work
from tb_perfadvisor.trace import KernelFamily


@lru_cache(maxsize=16_384)  # layers and steps repeat
def work_of_operator(name: str, shapes: str, dtypes: str, values: str) -> Work | None:
    """The work of one execution.

    Args:
        name: PyTorch's name of the operator, such as `aten::mm`.
        shapes: Shapes of its inputs, as JSON.
        dtypes: Types of its inputs, separated by semicolons.
        values: Values of inputs that are not arrays, as JSON; empty if not recorded.

    Returns:
        None if the shapes do not tell or there is no formula for the operator.
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


# Operators of other packages. Sources: flash_attn/flash_attn_interface.py of flash-attn 2.7 and
# 2.8; transformer_engine/pytorch/csrc/ts_fp8_op.cpp of Transformer Engine 1.13.
_PACKAGED: Final = {
    "tex_ts::te_gemm_ts": matrix.transformer_engine,
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
_TEMPLATE: Final = re.compile(r"triton_tem_(?!.*(?:conv|attention)).*_(?:add|badd)?(b)?mm(?:_|$)")
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
