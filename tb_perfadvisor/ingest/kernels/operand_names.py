"""The arithmetic of matrix kernels whose names tell the types of their operands.

Weights may be stored in 4 or 8 bits and multiplied in 16: then the wider operand counts, because
the narrower one is converted to it first. The conventions are those of the generators that write
these names: trtllm-gen, triton_kernels (`make_matmul_repr`), vLLM's `ScalarType` ids in Marlin's
template arguments, and `W4A16` for weights and activations.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Final

from tb_perfadvisor.trace.kinds import Precision

# trtllm-gen: `bmm_` output, operand A, operand B (left out if equal), accumulator.
_GENERATED_TYPE: Final = r"(?:Mx)?(?:E\dm\d|Bfloat16|Fp16|Fp32|Int8)"
_GENERATED_PRODUCT: Final = (
    rf"^b?(?:mm|gemm)_{_GENERATED_TYPE}_((?:{_GENERATED_TYPE}){{1,2}})_Fp32_"
)
# trtllm-gen: `Q` and `Kv`, together if equal, then `O`.
_GENERATED_ATTENTION: Final = (
    rf"^fmhaSm\d+\w?Kernel_Q(?:kv)?({_GENERATED_TYPE}(?:Kv{_GENERATED_TYPE})?)O"
)
# triton_kernels: layouts, then output x activations x weights.
_TRITON_PRODUCT: Final = r"^_(?:p_)?matmul(?:_ogs)?_[NT]{3}_([a-z0-9]+)_\d"
_TRITON_TYPE: Final = r"(?:mx)?(?:bf16|fp?16|fp?32|fp8|f8|fp4|int8|u8)"
# The first template argument is the type of the activations: vLLM's id, or a name before that.
_MARLIN: Final = r"[mM]arlin\w*(?:::|_)Marlin\w*<\s*(?:\(\w+\))?\s*(\w+)"
_MACHETE: Final = r"machete::\w*Kernel\w*<\s*([\w:]+)"
_WEIGHTS_AND_ACTIVATIONS: Final = (
    r"(?i)(?<![a-z0-9])w(?:\d+|n)a(\d{1,3})(?![0-9])|(?<![a-z0-9])a(\d{1,3})w\d+(?![0-9])"
    r"|W\d+A(\d{1,3})(?![0-9])"
)
# Weights in 4 bits, activations in 16: GPTQ, AWQ, tinygemm, bitsandbytes, exllama, TensorRT-LLM.
_WEIGHT_ONLY: Final = (
    r"(?i)gptq|(?<![a-z])awq|tinygemm|kgemm_4bit|gemm_half_q_half|gemm_forward_4bit|fpA_intB"
)

_WIDTHS: Final = (
    (r"(?i)fp?32|float(?![_0-9])", Precision.BITS_32),
    (r"(?i)bf16|bfloat16|fp?16|half|float16", Precision.BITS_16),
    (r"(?i)e\dm\d|fp?8|float_?e|fp4|int8|u8", Precision.BITS_8),
)
# Of an id of 64 bits; Python refuses to parse thousands of digits.
_MOST_DIGITS: Final = 20
_BITS: Final = {32: Precision.BITS_32, 16: Precision.BITS_16, 8: Precision.BITS_8}


def arithmetic_of(name: str) -> Precision | None:
    """The precision in which a kernel multiplies, if its name tells those of its operands.

    Args:
        name: Of a matrix product or an attention kernel.

    Returns:
        None for names of other conventions.
    """
    generated = re.match(_GENERATED_PRODUCT, name) or re.match(_GENERATED_ATTENTION, name)
    if generated:
        return _widest(generated[1])
    triton = re.match(_TRITON_PRODUCT, name)
    if triton:
        return _widest(" ".join(re.findall(_TRITON_TYPE, triton[1])[1:]))
    marlin = re.search(_MARLIN, name)
    if marlin:
        return _of_activations(marlin[1])
    machete = re.search(_MACHETE, name)
    if machete:
        return _widest(machete[1])
    widths = re.search(_WEIGHTS_AND_ACTIVATIONS, name)
    if widths:
        bits = int(next(group for group in widths.groups() if group))
        return _BITS.get(max(bits, 8))
    return Precision.BITS_16 if re.search(_WEIGHT_ONLY, name) else None


def _widest(types: str) -> Precision | None:
    return next((width for pattern, width in _WIDTHS if re.search(pattern, types)), None)


def _of_activations(argument: str) -> Precision:
    """The type of Marlin's activations, from its first template argument."""
    digits = argument.rstrip("lLuU")
    if digits.isdecimal() and len(digits) <= _MOST_DIGITS:
        return Precision.BITS_8 if int(digits) in _eight_bit_ids() else Precision.BITS_16
    return _widest(argument) or Precision.BITS_16


@cache
def _eight_bit_ids() -> frozenset[int]:
    """Ids of vLLM's `ScalarType`: widths of exponent and mantissa, and flags from bit 16 on."""
    signed, finite, not_a_number = 1 << 16, 1 << 49, 1 << 50
    int8 = signed | 7 << 8 | not_a_number
    e4m3 = signed | 3 << 8 | 4 | finite | 2 * not_a_number
    return frozenset((int8, e4m3))
