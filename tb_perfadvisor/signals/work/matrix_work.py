"""The work of PyTorch's matrix products, convolutions and attention.

A matrix product takes 2mnk FLOP, and a convolution 2 FLOP for each output element and weight of its
window. Attention takes two products forward and five backward, where the scores are computed again
(the convention of `torch.utils.flop_counter`). A causal mask halves them. What the model needs are
two products forward and four backward, whatever the mask (Chowdhery et al., PaLM, appendix B).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from functools import lru_cache
from math import prod
from typing import Any, Final

import numpy as np
from msgspec import Struct

from tb_perfadvisor.signals.core.causes import BUSY
from tb_perfadvisor.signals.device.device_work import kernel_families, time_within, work_rows
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.signals.work.operator_inputs import (
    Inputs,
    Matmul,
    Tensor,
    Work,
    common_format,
    convolution_product,
)
from tb_perfadvisor.trace import KernelFamily
from tb_perfadvisor.trace.hlo_text import Instruction, Shape, parse_instruction
from tb_perfadvisor.trace.integer_groups import distinct, is_in
from tb_perfadvisor.trace.intervals import single
from tb_perfadvisor.trace.tables import Float64, Int32
from tb_perfadvisor.units import NS_PER_S


def _product(a: Tensor, b: Tensor, *added: Tensor) -> Work:
    """A matrix product, single or batched, with tensors that are added to it."""
    batch = prod(a.shape[:-2])
    if a.shape[-1] != b.shape[-2] or batch != prod(b.shape[:-2]):
        raise ValueError(a, b)
    matmul = Matmul(batch, a.shape[-2], b.shape[-1], a.shape[-1])
    # 8-bit inputs give wider results. The inputs do not say how wide; assume the minimum, 16 bits.
    result_bytes = batch * matmul.m * matmul.n * max(a.item_bytes, 2)
    traffic = (
        a.size_bytes + b.size_bytes + result_bytes + sum(tensor.size_bytes for tensor in added)
    )
    return Work(KernelFamily.MATMUL, matmul.flop, traffic, common_format(a, b), matmul)


def mm(inputs: Inputs) -> Work:
    """`mm(a, b)`, single or batched."""
    return _product(inputs.tensor(0), inputs.tensor(1))


def addmm(inputs: Inputs) -> Work:
    """`addmm(added, a, b)`, single or batched."""
    return _product(inputs.tensor(1), inputs.tensor(2), inputs.tensor(0))


def linear(inputs: Inputs) -> Work:
    """`linear(x, weight, bias)` with a weight of shape (outputs, inputs)."""
    x, weight = inputs.tensor(0), inputs.tensor(1)
    rows = Tensor((prod(x.shape[:-1]), x.shape[-1]), x.dtype)
    bias = [tensor for tensor in inputs.tensors[2:3] if tensor is not None]
    return _product(rows, Tensor(weight.shape[::-1], weight.dtype), *bias)


_LEAST_ROWS: Final = 400
"""Per group. Programs pad each group by up to 8 rows, which are not multiplied: 2 % of 400."""


def grouped(offsets: int) -> Callable[[Inputs], Work]:
    """The formula for `_grouped_mm(a, b, offsets)`: a product for each group of rows or columns.

    One of the array's dimensions is divided among the groups. Each of its rows is multiplied once,
    wherever the offsets are.
    """

    def formula(inputs: Inputs) -> Work:
        a, b = inputs.tensor(0), inputs.tensor(1)
        ranks = (len(a.shape), len(b.shape))
        if ranks == (3, 3):
            return _product(a, b)
        if a.shape[-1] != b.shape[-2]:
            raise ValueError(a, b)
        groups = inputs.tensor(offsets).elements
        # Rows of activations, columns of them, or the sum over them in the gradient of weights.
        divided = {(2, 3): a.shape[0], (3, 2): b.shape[-1], (2, 2): a.shape[1]}[ranks]
        if divided < _LEAST_ROWS * groups:
            raise LookupError("too few rows to ignore those beyond the last group")
        m, n, k = a.shape[-2], b.shape[-1], a.shape[-1]
        results = groups if ranks == (2, 2) else 1
        traffic = a.size_bytes + b.size_bytes + results * m * n * max(a.item_bytes, 2)
        return Work(KernelFamily.MATMUL, 2.0 * m * n * k, traffic, common_format(a, b))

    return formula


def template(inputs: Inputs, *, is_batched: bool) -> Work:
    """A product that Inductor's Triton template computes: its operands, other inputs, the result.

    Operands may be transposed, and an epilogue adds inputs. What is added up is known if all pairs
    of inputs that could be the operands agree on its length.
    """
    *operands, result = [tensor for tensor in inputs.tensors if tensor is not None and tensor.shape]
    batch, n = result.shape[0] if is_batched else 1, result.shape[-1]
    m = result.elements // (batch * n)
    lengths = {
        a.elements // (batch * m)
        for a in operands
        for b in operands
        if a is not b
        and len(a.shape) >= 2 <= len(b.shape)
        and a.elements % (batch * m) == 0 == b.elements % (batch * n)
        and a.elements // (batch * m) == b.elements // (batch * n)
    }
    (k,) = lengths
    matmul = Matmul(batch, m, n, k)
    traffic = sum(tensor.size_bytes for tensor in (*operands, result))
    return Work(KernelFamily.MATMUL, matmul.flop, traffic, common_format(*operands), matmul)


def mv(inputs: Inputs) -> Work:
    """`mv(matrix, vector)`."""
    matrix, vector = inputs.tensor(0), inputs.tensor(1)
    return _product(matrix, Tensor((*vector.shape, 1), vector.dtype))


# --- convolutions -----------------------------------------------------------------------------


class Convolution(Struct, frozen=True):
    """Positions of a forward convolution's options among its inputs; -1 if absent."""

    stride: int
    padding: int
    dilation: int
    groups: int
    transposed: int = -1
    output_padding: int = -1
    """If this is present and `transposed` is not, the convolution is always transposed."""


def _spread(values: tuple[int, ...], rank: int) -> tuple[int, ...]:
    """One value for each dimension; a single value applies to all."""
    return values * rank if len(values) == 1 else values


def forward_convolution(at: Convolution) -> Callable[[Inputs], Work]:
    """The formula for convolutions with options at these positions."""

    def formula(inputs: Inputs) -> Work:
        x, weight = inputs.tensor(0), inputs.tensor(1)
        window = weight.shape[2:]

        def option(index: int) -> tuple[int, ...]:
            return _spread(inputs.integers(index), len(window))

        (groups,) = inputs.integers(at.groups)
        is_transposed = at.output_padding >= 0
        if at.transposed >= 0:
            is_transposed = inputs.is_set(at.transposed)
        sides = zip(
            x.shape[2:],
            window,
            option(at.stride),
            option(at.padding),
            option(at.dilation),
            option(at.output_padding) if is_transposed else window,
            strict=True,
        )
        if is_transposed:
            sizes = [(i - 1) * s - 2 * p + d * (w - 1) + e + 1 for i, w, s, p, d, e in sides]
            output = (x.shape[0], weight.shape[1] * groups, *sizes)
        else:
            sizes = [(i + 2 * p - d * (w - 1) - 1) // s + 1 for i, w, s, p, d, _ in sides]
            output = (x.shape[0], weight.shape[0], *sizes)
        # A transposed convolution does the same work as a convolution from its output to its input.
        small = x.shape if is_transposed else output
        product = convolution_product(small, weight.shape, groups)
        traffic = x.size_bytes + weight.size_bytes + prod(output) * x.item_bytes
        form = common_format(x, weight)
        return Work(KernelFamily.CONVOLUTION, product.flop, traffic, form, product)

    return formula


def convolution_backward(inputs: Inputs) -> Work:
    """`convolution_backward`: as much work as forward for each requested gradient."""
    grad, x, weight = inputs.tensor(0), inputs.tensor(1), inputs.tensor(2)
    (groups,) = inputs.integers(9)
    wanted = [word.strip() == "True" for word in inputs.value(10).strip("[]").split(",")]
    return _gradients(grad, x, weight, groups, wanted, is_transposed=inputs.is_set(7))


def library_convolution_backward(inputs: Inputs) -> Work:
    """`cudnn_convolution_backward(input, grad_output, weight, …)`: both gradients."""
    x, grad, weight = inputs.tensor(0), inputs.tensor(1), inputs.tensor(2)
    groups = x.shape[1] // weight.shape[1]
    return _gradients(grad, x, weight, groups, [True, True])


def _gradients(
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    groups: int,
    wanted: list[bool],
    *,
    is_transposed: bool = False,
) -> Work:
    """The requested gradients of a convolution's input and weight."""
    product = convolution_product(x.shape if is_transposed else grad.shape, weight.shape, groups)
    # Each pass reads two of these tensors and writes the third.
    pass_bytes = grad.size_bytes + x.size_bytes + weight.size_bytes
    passes = sum(wanted[:2])
    form = common_format(grad, weight)
    return Work(KernelFamily.CONVOLUTION, product.flop * passes, pass_bytes * passes, form, product)


# --- attention --------------------------------------------------------------------------------


class Attention(Struct, frozen=True):
    """Positions of an attention operator's inputs; -1 if absent."""

    query: int
    """Followed by key and value."""
    causal: int
    """Whether the mask is causal: a boolean, or a mask type other than 0."""
    lengths_second: bool
    """Whether arrays are (batch, length, heads, size) rather than (batch, heads, length, size)."""
    is_backward: bool = False
    packed: int = -1
    """Offsets of sequences that are packed into one array, followed by those of the keys."""
    longest: int = -1
    """The length of the longest sequence, followed by that of the keys."""
    window: int = -1
    """How many keys before a query it attends to; -1 as a value stands for all. The next input
    says the same of the keys after it."""


def attention(at: Attention) -> Callable[[Inputs], Work]:
    """The formula for attention operators with inputs at these positions."""

    def formula(inputs: Inputs) -> Work:
        query, key, value = (inputs.tensor(at.query + i) for i in range(3))
        offsets = inputs.tensors[at.packed] if 0 <= at.packed < len(inputs.tensors) else None
        if offsets is not None and offsets.shape:
            query = _unpacked(inputs, query, at.packed, at.longest)
            key, value = (
                _unpacked(inputs, tensor, at.packed + 1, at.longest + 1) for tensor in (key, value)
            )
        if at.window >= 0 and not _attends_to_all(inputs, at):
            raise LookupError("the work of a sliding window depends on its kernel's tiles")
        length, heads = (1, 2) if at.lengths_second else (2, 1)
        batch = query.shape[0] * query.shape[heads]
        scores = Matmul(batch, query.shape[length], key.shape[length], query.shape[3])
        values = Matmul(batch, scores.m, value.shape[3], scores.n)
        # Backward computes the scores again, then the gradient of each factor of both products.
        passes = (3, 2) if at.is_backward else (1, 1)
        flop = passes[0] * scores.flop + passes[1] * values.flop
        if inputs.is_set(at.causal) and scores.m == scores.n:
            flop /= 2
        result = batch * scores.m * values.n * query.item_bytes
        operands = query.size_bytes + key.size_bytes + value.size_bytes
        # Backward also reads the result and its gradient, and writes three gradients.
        traffic = 2 * operands + 2 * result if at.is_backward else operands + result
        return Work(
            KernelFamily.ATTENTION,
            flop,
            traffic,
            common_format(query, key, value),
            scores,
            model_flop=(scores.flop + values.flop) * (2 if at.is_backward else 1),
        )

    return formula


def _unpacked(inputs: Inputs, packed: Tensor, offsets: int, longest: int) -> Tensor:
    """Packed sequences as (batch, length, heads, size).

    Shapes do not contain their lengths. But if there are as many rows as the longest sequence
    times their number, all are equally long.
    """
    batch = inputs.tensor(offsets).elements - 1
    (length,) = inputs.integers(longest)
    *ahead, rows, heads, size = packed.shape
    if prod(ahead) != 1 or batch < 1 or length < 1 or rows != batch * length:
        raise LookupError("the lengths of packed sequences differ")
    return Tensor((batch, length, heads, size), packed.dtype)


def _attends_to_all(inputs: Inputs, at: Attention) -> bool:
    """Whether no window limits attention, except for a causal mask."""
    (before,), (after,) = inputs.integers(at.window), inputs.integers(at.window + 1)
    return before < 0 and (after < 0 or (after == 0 and inputs.is_set(at.causal)))


_PRODUCTS = (KernelFamily.MATMUL, KernelFamily.CONVOLUTION, KernelFamily.ATTENTION)
KNOWN_SHARE = 0.9
"""Share of the products' time whose FLOP must be known to compute the use."""


class MatrixUnit(Struct, frozen=True):
    """Products of the used window with known FLOP; columns of shape (n,)."""

    row: Int32
    flop: Float64
    peak: float
    """16-bit peak of the unit in FLOP/s."""
    use: float
    """Share of the peak: from counters over the whole profile, else from FLOP in the window."""
    is_counted: bool
    """Whether `use` comes from hardware counters."""
    time_share: float
    """Share of the device's busy time that all products take."""


@memoized
def matrix_unit(signals: Signals) -> MatrixUnit | None:
    """Use of the matrix unit; None if the peak, the products or their FLOP are unknown."""
    facts, trace, window = signals.device_facts, signals.trace, signals.attribution
    peak = facts.peaks.flop_per_s("bf16") if facts is not None and facts.peaks is not None else None
    rows = work_rows(signals)
    rows = rows[is_in(kernel_families(signals), _PRODUCTS)]
    # Executions that begin or end outside of the window count with their part inside.
    inside_ns = time_within(signals, rows, single(window.window_start_ns, window.window_end_ns))
    time_ns = int(inside_ns.sum())
    busy_ns = window.total_ns(*BUSY)
    if peak is None or not time_ns or not busy_ns:
        return None
    flop = np.append(trace.hlo.flop, np.nan)[trace.operations(rows)]
    has_flop = flop > 0
    counted_use = _counted_use(signals)
    is_known = inside_ns[has_flop].sum() >= KNOWN_SHARE * time_ns
    if counted_use is None and not is_known:
        return None
    rows, flop = rows[has_flop], flop[has_flop]
    possible_flop = peak * window.window_ns / NS_PER_S
    inside_share = inside_ns[has_flop] / np.maximum(trace.events.duration_ns[rows], 1)
    use = float((flop * inside_share).sum() / possible_flop) if counted_use is None else counted_use
    return MatrixUnit(rows, flop, peak, use, counted_use is not None, time_ns / busy_ns)


def _counted_use(signals: Signals) -> float | None:
    """Use according to the device's counters; None if there are none."""
    devices = signals.trace.devices
    index = signals.device.index
    return next((device.matrix_unit_use for device in devices if device.index == index), None)


# TPU profiles record FLOP and bytes themselves.

_FORMATS: Final = {"f64": "fp64", "f32": "fp32", "f16": "fp16", "bf16": "bf16", "s8": "int8"}
_GEMM_CALLS: Final = ("__cublas$", "__cublaslt$", "__hipblaslt$")


@lru_cache(maxsize=16_384)
def work_of_hlo(text: str, family: KernelFamily) -> Work | None:
    """The work of one execution; None if the text does not tell.

    The text is the operation with shapes: `%name = shape opcode(shape %operand, …), …`. The family
    is what it computes, according to its category or kernel.
    """
    instruction = parse_instruction(text)
    if instruction is None or not instruction.results or not instruction.operands:
        return None
    if instruction.opcode == "custom-call":
        is_gemm = any(f'custom_call_target="{name}' in text for name in _GEMM_CALLS)
        return _gemm(instruction) if is_gemm else None
    if instruction.opcode == "dot":
        return _gemm(instruction)
    if instruction.opcode != "fusion" or "kind=kCustom" in text:
        return None
    # This is an upper limit of the traffic, since a fusion may read only a part of an operand.
    return Work(
        family,
        sum(shape.elements for shape in instruction.results),
        _bytes(*instruction.results) + _bytes(*instruction.operands),
        _format(*instruction.operands),
    )


def _gemm(instruction: Instruction) -> Work | None:
    """The product of the first two operands; others are added or scale the result."""
    if len(instruction.operands) < 2:
        return None
    a, b, result = instruction.operands[0], instruction.operands[1], instruction.results[0]
    rank = len(result.dims)
    if not len(a.dims) == len(b.dims) == rank >= 2:
        return None
    batch = prod(result.dims[:-2])
    if batch != prod(a.dims[:-2]) or batch != prod(b.dims[:-2]):
        return None
    m, n = result.dims[-2:]
    k, remainder = divmod(a.elements, batch * m) if batch * m else (0, 1)
    if remainder or k * batch * n != b.elements:
        return None
    matmul = Matmul(batch, m, n, k)
    traffic = _bytes(a, b, result)
    return Work(KernelFamily.MATMUL, matmul.flop, traffic, _format(a, b), matmul)


def _format(*shapes: Shape) -> str:
    formats = {
        "fp8" if shape.dtype.startswith("f8") else _FORMATS.get(shape.dtype, "")
        for shape in shapes
        if shape.dims  # scalar constants adopt the type of the arrays
    }
    return formats.pop() if len(formats) == 1 else ""


def _bytes(*shapes: Shape) -> float:
    return sum(shape.elements * shape.element_bits / 8 for shape in shapes)


_CONVOLUTIONS = ("aten::conv1d", "aten::conv2d", "aten::conv3d", "aten::convolution")
_AGREEMENT = 0.9
"""Share of executions that must have the same batch size. Others may process something else:
positions that all samples share, or regions of an image."""


@memoized
def batch_size(signals: Signals) -> int | None:
    """Samples in a forward pass of one rank; None if the shapes do not tell.

    Convolutions are the most reliable, then embeddings. Linear layers are not used: their rows may
    be samples, tokens or regions.
    """
    trace, operators = signals.trace, signals.operators
    known = distinct(operators.name).tolist()
    for names, batch_in in (
        (_CONVOLUTIONS, _batch_of_convolution),
        (("aten::embedding",), _batch_of_embedding),
    ):
        matching = [name for name in known if trace.strings[name] in names]
        votes: Counter[int] = Counter()
        for row in np.flatnonzero(is_in(operators.name, matching)).tolist():
            batch = batch_in(_shapes(trace.text(int(operators.shapes[row]))))
            if batch is not None:
                votes[batch] += int(operators.count[row])
        if votes:
            batch, count = votes.most_common(1)[0]
            return batch if count >= _AGREEMENT * votes.total() else None
    return None


def _batch_of_convolution(shapes: list[list[int]]) -> int | None:
    """The input's first dimension, if it has as many dimensions as the weight."""
    if len(shapes) < 2 or len(shapes[0]) != len(shapes[1]) or len(shapes[0]) < 3:
        return None
    return shapes[0][0]


def _batch_of_embedding(shapes: list[list[int]]) -> int | None:
    """The first dimension of the indices; None if sequences are packed into one dimension."""
    return shapes[1][0] if len(shapes) >= 2 and len(shapes[1]) == 2 else None


def _shapes(text: str) -> list[list[int]]:
    """The shapes of the inputs; empty for inputs that are not arrays."""
    try:
        inputs = json.loads(text)
    except ValueError:
        return []
    return [_shape(value) for value in inputs] if isinstance(inputs, list) else []


def _shape(value: Any) -> list[int]:
    is_shape = isinstance(value, list) and all(type(size) is int and size > 0 for size in value)
    return value if is_shape else []
