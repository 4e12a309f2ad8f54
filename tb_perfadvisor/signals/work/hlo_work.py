"""The work of XLA's operations on a GPU, from the shapes in their HLO text.

TPU profiles record FLOP and bytes themselves.
"""

from __future__ import annotations

import json
from collections import Counter
from functools import lru_cache
from math import prod
from typing import Any, Final

import numpy as np

from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.signals.work.required_work import Matmul, Work
from tb_perfadvisor.trace import KernelFamily
from tb_perfadvisor.trace.hlo_text import Instruction, Shape, parse_instruction
from tb_perfadvisor.trace.integer_groups import distinct, is_in

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
