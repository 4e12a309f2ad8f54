"""The work of XLA operations on a GPU, from the shapes in their HLO text.

TPU profiles record FLOP and bytes themselves.
"""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import Final

from tb_perfadvisor.signals.work.required_work import Matmul, Work
from tb_perfadvisor.trace import KernelFamily
from tb_perfadvisor.trace.hlo_text import Instruction, Shape, parse_instruction

_FORMATS: Final = {"f64": "fp64", "f32": "fp32", "f16": "fp16", "bf16": "bf16", "s8": "int8"}
_GEMM_CALLS: Final = ("__cublas$", "__cublaslt$", "__hipblaslt$")


@lru_cache(maxsize=16_384)
def work_of_hlo(text: str, family: KernelFamily) -> Work | None:
    """The work of one execution.

    Args:
        text: The operation with shapes: `%name = shape opcode(shape %operand, …), …`.
        family: What it computes, according to its category or kernel.

    Returns:
        None if the text does not tell.
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
