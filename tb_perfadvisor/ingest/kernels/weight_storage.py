"""How many bits weights are stored in, where kernels multiply them in more.

The names follow the conventions of `operand_names.py`. Where a name only says that weights are
quantized, as those of GPTQ with 2 to 8 bits may do, the width is unknown.
"""

from __future__ import annotations

import re
from typing import Final

# trtllm-gen: output, then operands A and B. triton_kernels: output x activations x weights.
_GENERATED: Final = (
    r"^b?(?:mm|gemm)_[^_]+_((?:Mx)?(?:E\dm\d|Int8))((?:Mx)?(?:E\dm\d|Bfloat16|Fp16))_"
)
_TRITON: Final = r"^_(?:p_)?matmul(?:_ogs)?_[NT]{3}_[a-z0-9]+?x((?:bf|fp?)\d+)\w*?x((?:mx)?fp?\d)"
# The second template argument is the type of the weights: an id of vLLM, or a name.
_MARLIN: Final = r"[mM]arlin\w*(?:::|_)Marlin\w*<[^,]+,\s*(?:\(\w+\))?\s*(\d{1,20})[lL]?,"
_MACHETE: Final = r"machete::\w*Kernel\w*<[^,]+,\s*cutlass::integer_subbyte<(\d),"
_STATED: Final = (
    r"(?i:kgemm|gemm_forward|gptq)_(4)bit|BLayout_TC_int(4)|(?<![a-z0-9])w([48])a16(?![0-9])"
    r"|W([48])A16(?![0-9])|(?<![a-z])a16w([48])(?![0-9])"
)
_FOUR_BITS: Final = r"E2m1|fp?4$"


def stored_bits(name: str) -> int | None:
    """The width of a product's weights, if its name tells that it multiplies them in more bits.

    Args:
        name: Of a kernel.

    Returns:
        4 or 8; None if the name tells nothing, or that both operands are as wide.
    """
    operands = re.match(_GENERATED, name) or re.match(_TRITON, name)
    if operands:
        widths = {
            4 if re.search(_FOUR_BITS, type_) else _width(type_) for type_ in operands.groups()
        }
        return min(widths) if len(widths) > 1 else None
    marlin = re.search(_MARLIN, name)
    if marlin:
        # Of vLLM's `ScalarType`: bits of the exponent, of the mantissa, and whether it is signed.
        number = int(marlin[1])
        return (number & 0xFF) + (number >> 8 & 0xFF) + (number >> 16 & 1)
    stated = re.search(_MACHETE, name) or re.search(_STATED, name)
    return int(next(group for group in stated.groups() if group)) if stated else None


def _width(type_: str) -> int:
    return 16 if re.search(r"(?i)bf|fp?16", type_) else 8
