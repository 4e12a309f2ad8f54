"""Matches the names of kernels and operators between two runs, and shortens them for display.

Equal names mean the same operation, but different names may, too. Libraries pick different variants
of a kernel for different dtypes and sizes (`ampere_sgemm_128x64_tn`, `ampere_sgemm_128x128_tn`).
Compilers and Keras number their operations afresh in each program (`fusion.12`,
`triton_poi_fused_add_3`, `sequential_1/conv2d_3/Relu`).
"""

from __future__ import annotations

import re

_XLA_NUMBER = re.compile(r"(?:[._](?:\d+|clone))+$")
# Types as spelled in C++ and in the names of library kernels.
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
    """The name of an XLA operation without its number."""
    return _XLA_NUMBER.sub("", name) or name


def variant_key(name: str) -> str:
    """A key that is equal for variants of one kernel: it ignores dtypes, sizes and numbering."""
    key = _ANONYMOUS.sub("", _bare(name))
    key = _NUMBER_FORMAT.sub("T", _NUMBERING.sub("", key))
    return _SPACE.sub("", _NUMBER.sub("#", key))


def short_name(name: str) -> str:
    """A kernel's name for display, without parameter list and namespaces."""
    return _QUALIFIER.sub("", _ANONYMOUS.sub("", _bare(name))).replace("> >", ">>") or name


def _bare(name: str) -> str:
    """A demangled name without return type and parameter list."""
    name = _RETURN_TYPE.sub("", name)
    masked = _ANONYMOUS.sub(lambda match: "_" * len(match[0]), name)
    depth = 0
    for index, character in enumerate(masked):
        depth += (character == "<") - (character == ">")
        if character == "(" and depth == 0 and index > 0:
            return name[:index].rstrip()
    return name
