"""Parses the text of XLA operations: opcode, shapes, family, precision, communication.

TPU profiles contain the output of `HloInstruction::ToString`:
`%fusion.1 = bf16[8,128]{1,0:T(8,128)(2,1)} fusion(bf16[8,64]{1,0} %a, …), kind=kOutput, …`
"""

from __future__ import annotations

import re
from functools import lru_cache
from math import prod
from typing import Final

from msgspec import Struct

from tb_perfadvisor.trace import CopyDirection, EventKind, KernelFamily, Precision

_OPCODE: Final = re.compile(r"(?:^|[\s)}\]])([a-z][a-z0-9-]*)\(")
_SHAPE: Final = re.compile(r"\b(pred|token|opaque|(?:bf|f|s|u|c)\d+\w*)\[([\d,<=]*)\](\{[^{}]*\})?")
_GROUPS_IOTA: Final = re.compile(r"replica_groups=\[(\d{1,18}),(\d{1,18})\]")
_GROUPS_LIST: Final = re.compile(r"replica_groups=\{\{([\d,]*)\}")
_DIMENSION_LABELS: Final = re.compile(r"dim_labels=(\w+)_(\w+)->(\w+)")
_COLLECTIVE: Final = re.compile(
    r"%?((?:ragged-)?all-to-all|all-reduce-scatter|all-reduce|all-gather|reduce-scatter"
    r"|collective-permute|collective-broadcast|async-collective)(?![a-z])"
)
# Opcodes that do not tell the operation; its name does.
_WRAPPERS: Final = frozenset(
    {"", "fusion", "custom-call", "async-start", "async-update", "async-done"}
)
# Library calls for matrix products and convolutions (`__cublas$gemm`).
_CONTRACTING_TARGET: Final = re.compile(r'custom_call_target="[^"]*(gemm|matmul|[cC]onv)')
_HOST_MEMORY: Final = "S(5)"
_NUMBER: Final = re.compile(r"\d{1,18}")
_PARENTHESIS: Final = re.compile(r"[()]")
_WIDTH: Final = re.compile(r"(?:bf|f|s|u)(\d{1,4})(?!\d)")
_PRECISION: Final = {
    4: Precision.BITS_8,
    8: Precision.BITS_8,
    16: Precision.BITS_16,
    32: Precision.BITS_32,
    64: Precision.BITS_64,
}


class Shape(Struct, frozen=True):
    """An array in the results or operands of an operation."""

    dtype: str
    size_bytes: int
    is_on_host: bool


class Operation(Struct, frozen=True):
    """The attributes of an XLA operation."""

    name: str
    opcode: str
    category: str
    kind: EventKind
    family: KernelFamily
    precision: Precision
    is_container: bool
    """Whether it is a while, conditional or call, whose body is recorded inside it."""
    collective: str
    """all-reduce, …; empty for other operations."""
    collective_bytes: int
    collective_dtype: str
    group_size: int
    copy_direction: CopyDirection
    copy_bytes: int


def parse_operation(text: str, *, name: str = "", category: str = "", path: str = "") -> Operation:
    """Parse an operation.

    Args:
        text: Its HLO text, or only its name.
        name: Its short name (`fusion.1`); by default, taken from the text.
        category: XProf's `hlo_category`, if the profile has it.
        path: The framework's name of it (`jit(f)/dot_general`), if the profile has it.
    """
    head, _, body = text.partition(" = ")
    name = name or head.strip().lstrip("%")
    match = _OPCODE.search(body)
    opcode = match[1] if match else ""
    results = _shapes(body[: match.start(1)] if match else body)
    operands = _shapes(_arguments(body, match.end())) if match else []
    label = (category or opcode or name).lower()
    collective = _collective(label, opcode, name)
    kind = _kind(label, opcode, name, collective, text)
    is_start = "-start" in (opcode or name)
    is_contraction = "convolution" in label or opcode in ("dot", "convolution")
    target = _CONTRACTING_TARGET.search(text) if opcode == "custom-call" else None
    is_contraction |= target is not None
    return Operation(
        name=name,
        opcode=opcode,
        category=category or opcode,
        kind=kind,
        family=_family(label, opcode, name, path, text) if kind == EventKind.KERNEL else _OTHER,
        precision=_precision(operands if is_contraction and operands else results, is_contraction),
        is_container=(opcode or label) in ("while", "conditional", "call"),
        collective=collective,
        collective_bytes=-1 if is_start else _collective_bytes(opcode, results, operands),
        collective_dtype=results[0].dtype if results else "",
        group_size=_group_size(text),
        copy_direction=_copy_direction(results, operands, is_start),
        copy_bytes=-1 if is_start or not results else results[0].size_bytes,
    )


_OTHER: Final = KernelFamily.OTHER


def _shapes(text: str) -> list[Shape]:
    return [_shape(*parts) for parts in _SHAPE.findall(text)]


# Programs have thousands of operations but few different shapes.
@lru_cache(maxsize=4096)
def _shape(dtype: str, dimensions: str, layout: str) -> Shape:
    sizes = [int(part) for part in _NUMBER.findall(dimensions)]
    width = _WIDTH.match(dtype)
    bits = int(width[1]) if width else 8 if dtype == "pred" else 0
    if dtype.startswith("c"):
        bits = int(_NUMBER.findall(dtype)[0])
    size = prod(sizes) * bits // 8
    return Shape(dtype, size if size < 2**62 else -1, _HOST_MEMORY in layout)


def _arguments(body: str, begin: int) -> str:
    """The text from a position after an opening parenthesis to the closing one."""
    depth = 1
    for parenthesis in _PARENTHESIS.finditer(body, begin):
        depth += 1 if parenthesis[0] == "(" else -1
        if depth == 0:
            return body[begin : parenthesis.start()]
    return body[begin:]


def _collective(label: str, opcode: str, name: str) -> str:
    for text in (label, opcode, name if opcode in _WRAPPERS else ""):
        match = _COLLECTIVE.match(text)
        if match:
            # TPUs fuse an all-reduce with the slice that each core keeps.
            return match[1].removeprefix("all-") if "scatter" in match[1] else match[1]
    return ""


def _kind(label: str, opcode: str, name: str, collective: str, text: str) -> EventKind:
    if collective:
        return EventKind.COLLECTIVE
    word = opcode or re.sub(r"[.\d]+$", "", name)
    if word.startswith(("infeed", "outfeed")) or label.startswith(("infeed", "outfeed")):
        return EventKind.INFEED_WAIT
    if word in ("send", "recv", "send-done", "recv-done"):
        is_host = "is_host_transfer=true" in text or "host" in label
        # Transfers to devices of another slice also go through the host.
        is_host &= "megascale" not in text
        return EventKind.COPY if is_host else EventKind.COLLECTIVE
    if word in ("copy", "copy-start", "copy-done") or label in ("copy", "copy-start", "copy-done"):
        return EventKind.COPY
    return EventKind.KERNEL


# The first pattern that matches the start of the category, opcode or name of a fusion.
_FAMILIES: Final = tuple(
    (re.compile(pattern), family)
    for pattern, family in (
        (
            r"loop fusion|non-fusion elementwise|broadcast|iota|convert|select",
            KernelFamily.ELEMENTWISE,
        ),
        (
            r"data formatting|transpose|reshape|bitcast|pad|slice|concatenate|reverse",
            KernelFamily.LAYOUT,
        ),
        (r"reduce|input fusion", KernelFamily.REDUCTION),
        (r"sort|top-?k", KernelFamily.SORT),
        (r"rng", KernelFamily.RANDOM),
    )
)
_FUSED: Final = (
    (re.compile(r"reduce(?!-precision)"), KernelFamily.REDUCTION),
    (re.compile(r"transpose|concatenate"), KernelFamily.LAYOUT),
)
_ATTENTION: Final = re.compile(r"(?i)flash|splash|attention|attn|fmha")
_MATMUL_PATH: Final = re.compile(r"(?i)dot_general|einsum|matmul|/dot\b|_dot")
_CONVOLUTION_PATH: Final = re.compile(r"(?i)conv_general|conv[123]d|convolution$|/conv")


def _family(label: str, opcode: str, name: str, path: str, text: str) -> KernelFamily:
    if "convolution" in label or opcode == "convolution":
        labels = _DIMENSION_LABELS.search(text)
        if labels:
            # A TPU's convolution without spatial dimensions is a matrix product.
            spatial = any(letter.isdigit() for letter in labels[1])
            return KernelFamily.CONVOLUTION if spatial else KernelFamily.MATMUL
        if _CONVOLUTION_PATH.search(path) and not _MATMUL_PATH.search(path):
            return KernelFamily.CONVOLUTION
        # Most convolution fusions on a TPU are matrix products; the text does not tell.
        return KernelFamily.MATMUL
    if opcode == "dot":
        return KernelFamily.MATMUL
    target = _CONTRACTING_TARGET.search(text) if opcode == "custom-call" else None
    if target:
        is_product = target[1] in ("gemm", "matmul")
        return KernelFamily.MATMUL if is_product else KernelFamily.CONVOLUTION
    if "custom" in label and _ATTENTION.search(f"{name} {path}"):
        return KernelFamily.ATTENTION
    if "fusion" in label:
        # Fusions are named after their content: input fusions on a GPU reduce or transpose.
        for pattern, family in _FUSED:
            if pattern.search(name):
                return family
    for text_of in (label, opcode):
        for pattern, family in _FAMILIES:
            if pattern.match(text_of):
                return family
    return KernelFamily.OTHER


def _precision(shapes: list[Shape], is_contraction: bool) -> Precision:
    """The narrowest precision; integers only count in contractions."""
    widths = []
    for shape in shapes:
        match = _WIDTH.match(shape.dtype)
        if match and (shape.dtype[0] in "bf" or (is_contraction and int(match[1]) <= 8)):
            widths.append(int(match[1]))
    return _PRECISION.get(min(widths), Precision.UNKNOWN) if widths else Precision.UNKNOWN


def _collective_bytes(opcode: str, results: list[Shape], operands: list[Shape]) -> int:
    """Size of the full buffer: the larger of result and operands (result only for `-done`)."""
    result = sum(shape.size_bytes for shape in results)
    if opcode.endswith("-done"):
        return result or -1
    return max(result, sum(shape.size_bytes for shape in operands)) or -1


def _group_size(text: str) -> int:
    if "replica_groups=" not in text:
        return -1
    match = _GROUPS_IOTA.search(text)
    if match:
        return min(int(match[2]), 2**31 - 1)
    match = _GROUPS_LIST.search(text)
    return len(match[1].split(",")) if match and match[1] else -1


def _copy_direction(results: list[Shape], operands: list[Shape], is_start: bool) -> CopyDirection:
    """The direction by the memories of source and target; `S(5)` in a layout is host memory.

    The result of a start, and the operand of a done, is (target, source, context).
    """
    if not results:
        return CopyDirection.UNKNOWN
    target = results[0]
    if is_start and len(results) > 1:
        source = results[1]
    elif len(operands) > 1:
        source = operands[1]
    elif operands:
        source = operands[0]
    else:
        return CopyDirection.UNKNOWN
    if target.is_on_host:
        on_host = CopyDirection.HOST_TO_HOST, CopyDirection.DEVICE_TO_HOST
        return on_host[0] if source.is_on_host else on_host[1]
    if source.is_on_host:
        return CopyDirection.HOST_TO_DEVICE
    return CopyDirection.DEVICE_TO_DEVICE
