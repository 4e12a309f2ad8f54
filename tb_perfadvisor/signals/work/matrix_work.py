"""The work of PyTorch's matrix products, convolutions and attention.

A matrix product has 2mnk FLOP; a convolution 2 for each output element and weight of its window;
attention two products forward and five backward, which computes the scores again (the convention
of `torch.utils.flop_counter`), half of them where a causal mask hides half.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import NamedTuple

from tb_perfadvisor.signals.work.operator_inputs import Inputs, Tensor, common_format
from tb_perfadvisor.signals.work.required_work import Matmul, Work, convolution_product
from tb_perfadvisor.trace import KernelFamily


def _product(a: Tensor, b: Tensor, *added: Tensor) -> Work:
    """A product of matrices, or of batches of them, with what is added to it."""
    batch = prod(a.shape[:-2])
    if a.shape[-1] != b.shape[-2] or batch != prod(b.shape[:-2]):
        raise ValueError(a, b)
    matmul = Matmul(batch, a.shape[-2], b.shape[-1], a.shape[-1])
    # 8-bit inputs give wider results; how wide is not among the inputs, 16 bits is the least.
    result_bytes = batch * matmul.m * matmul.n * max(a.item_bytes, 2)
    traffic = a.size_bytes + b.size_bytes + result_bytes + sum(one.size_bytes for one in added)
    return Work(KernelFamily.MATMUL, matmul.flop, traffic, common_format(a, b), matmul)


def mm(inputs: Inputs) -> Work:
    """`mm(a, b)`, and batches of it."""
    return _product(inputs.tensor(0), inputs.tensor(1))


def addmm(inputs: Inputs) -> Work:
    """`addmm(added, a, b)`, and batches of it."""
    return _product(inputs.tensor(1), inputs.tensor(2), inputs.tensor(0))


def linear(inputs: Inputs) -> Work:
    """`linear(x, weight, bias)`: the weight is (outputs, inputs)."""
    x, weight = inputs.tensor(0), inputs.tensor(1)
    rows = Tensor((prod(x.shape[:-1]), x.shape[-1]), x.dtype)
    return _product(rows, Tensor(weight.shape[::-1], weight.dtype), *_rest(inputs, 2, 3))


def mv(inputs: Inputs) -> Work:
    """`mv(matrix, vector)`."""
    matrix, vector = inputs.tensor(0), inputs.tensor(1)
    return _product(matrix, Tensor((*vector.shape, 1), vector.dtype))


def _rest(inputs: Inputs, start: int, end: int) -> tuple[Tensor, ...]:
    return tuple(one for one in inputs.tensors[start:end] if one is not None)


# --- convolutions -----------------------------------------------------------------------------


class Convolution(NamedTuple):
    """Where a forward convolution keeps its options; -1 for one that it has not."""

    stride: int
    padding: int
    dilation: int
    groups: int
    transposed: int = -1
    output_padding: int = -1
    """Without `transposed` it says that the convolution always is."""


def _spread(values: tuple[int, ...], rank: int) -> tuple[int, ...]:
    """One value for each dimension: a single one stands for all."""
    return values * rank if len(values) == 1 else values


def forward_convolution(at: Convolution) -> Callable[[Inputs], Work]:
    """The formula of a convolution whose options stand at some positions."""

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
        # A transposed convolution is, backwards, one from its output to its input.
        small = x.shape if is_transposed else output
        product = convolution_product(small, weight.shape, groups)
        traffic = x.size_bytes + weight.size_bytes + prod(output) * x.item_bytes
        form = common_format(x, weight)
        return Work(KernelFamily.CONVOLUTION, product.flop, traffic, form, product)

    return formula


def convolution_backward(inputs: Inputs) -> Work:
    """`convolution_backward`: one pass, as large as the forward one, for each gradient asked."""
    grad, x, weight = inputs.tensor(0), inputs.tensor(1), inputs.tensor(2)
    (groups,) = inputs.integers(9)
    asked = [word.strip() == "True" for word in inputs.value(10).strip("[]").split(",")]
    return _gradients(grad, x, weight, groups, asked, is_transposed=inputs.is_set(7))


def library_backward(inputs: Inputs) -> Work:
    """`cudnn_convolution_backward(input, grad_output, weight, …)`: both gradients."""
    x, grad, weight = inputs.tensor(0), inputs.tensor(1), inputs.tensor(2)
    groups = x.shape[1] // weight.shape[1]
    return _gradients(grad, x, weight, groups, [True, True])


def _gradients(
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    groups: int,
    asked: list[bool],
    *,
    is_transposed: bool = False,
) -> Work:
    """Gradients of a convolution's input and weight, as asked."""
    product = convolution_product(x.shape if is_transposed else grad.shape, weight.shape, groups)
    each = grad.size_bytes + x.size_bytes + weight.size_bytes  # one of them is written
    passes = sum(asked[:2])
    form = common_format(grad, weight)
    return Work(KernelFamily.CONVOLUTION, product.flop * passes, each * passes, form, product)


# --- attention --------------------------------------------------------------------------------


class Attention(NamedTuple):
    """Where attention keeps its inputs; -1 for what it has not."""

    query: int
    """Key and value follow."""
    causal: int
    """What says that the mask is causal: a truth value, or a kind of mask other than 0."""
    lengths_second: bool
    """Whether arrays are (batch, length, heads, size); else heads come second."""
    is_backward: bool = False
    packed: int = -1
    """The offsets of sequences that are packed into one."""


def attention(at: Attention) -> Callable[[Inputs], Work]:
    """The formula of an attention whose inputs stand at some positions."""

    def formula(inputs: Inputs) -> Work:
        query, key, value = (inputs.tensor(at.query + i) for i in range(3))
        if at.packed >= 0 and inputs.tensors[at.packed] is not None:
            raise LookupError("the lengths of packed sequences are in memory, not in the shapes")
        length, heads = (1, 2) if at.lengths_second else (2, 1)
        batch = query.shape[0] * query.shape[heads]
        scores = Matmul(batch, query.shape[length], key.shape[length], query.shape[3])
        values = Matmul(batch, scores.m, value.shape[3], scores.n)
        # Backward: the scores again, then a gradient of each factor of both products.
        passes = (3, 2) if at.is_backward else (1, 1)
        flop = passes[0] * scores.flop + passes[1] * values.flop
        if inputs.is_set(at.causal) and scores.m == scores.n:
            flop /= 2
        result = batch * scores.m * values.n * query.item_bytes
        own = query.size_bytes + key.size_bytes + value.size_bytes
        # Backward reads the result and its gradient besides, and writes three gradients.
        traffic = 2 * own + 2 * result if at.is_backward else own + result
        return Work(KernelFamily.ATTENTION, flop, traffic, common_format(query, key, value), scores)

    return formula
