"""Names of kernels and operators: which mean the same thing in two runs, and how to say them.

Equal names are the same thing. Beyond that, libraries pick another variant of a kernel for
another number format or size (`ampere_sgemm_128x64_tn`, `ampere_sgemm_128x128_tn`), and
compilers and Keras number what they make anew for each program (`fusion.12`,
`triton_poi_fused_add_3`, `sequential_1/conv2d_3/Relu`).
"""

from __future__ import annotations

import re

_XLA_NUMBER = re.compile(r"(?:[._](?:\d+|clone))+$")
# Types as C++ and the names of libraries' kernels spell them.
_NUMBER_FORMAT = re.compile(
    r"\b(?:(?:\w+::)*(?:__half2?|half(?:_t)?|Half|__nv_bfloat162?|bfloat16(?:_t)?|BFloat16"
    r"|tfloat32_t|Float8\w*)|(?:float|double)[24]?)\b"
    r"|(?<![a-zA-Z])(?:fp|bf|tf|f|e\dm)(?:8|16|32|64|\d)(?![a-zA-Z])"
)
_NUMBERING = re.compile(r"(?:_\d+)+(?=[/:]|$)")
_NUMBER = re.compile(r"\d+")
_SPACE = re.compile(r"\s+")
_RETURN_TYPE = re.compile(r"^void\s+")
_ANONYMOUS = re.compile(r"\(anonymous namespace\)::|_GLOBAL__N__\w*::")
_QUALIFIER = re.compile(r"\b(?:[a-zA-Z_]\w*::)+(?=[a-zA-Z_{])")


def without_number(name: str) -> str:
    """What XLA calls an operation, without the number that tells it from its likes."""
    return _XLA_NUMBER.sub("", name) or name


def variant_key(name: str) -> str:
    """Equal for variants of one kernel: number formats, sizes and numberings don't count."""
    key = _ANONYMOUS.sub("", _bare(name))
    key = _NUMBER_FORMAT.sub("T", _NUMBERING.sub("", key))
    return _SPACE.sub("", _NUMBER.sub("#", key))


def short_name(name: str) -> str:
    """A kernel's name for people: no parameter list, no namespaces."""
    return _QUALIFIER.sub("", _ANONYMOUS.sub("", _bare(name))).replace("> >", ">>") or name


def _bare(name: str) -> str:
    """A demangled name without its return type and its list of parameters."""
    name = _RETURN_TYPE.sub("", name)
    masked = _ANONYMOUS.sub(lambda match: "_" * len(match[0]), name)
    depth = 0
    for index, character in enumerate(masked):
        depth += (character == "<") - (character == ">")
        if character == "(" and depth == 0 and index > 0:
            return name[:index].rstrip()
    return name
