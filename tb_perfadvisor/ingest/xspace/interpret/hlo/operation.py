"""What the text of an XLA operation says of it: kind, family, precision, communication, copies.

TPU profiles contain the output of `HloInstruction::ToString`:
`%fusion.1 = bf16[8,128]{1,0:T(8,128)(2,1)} fusion(bf16[8,64]{1,0} %a, …), kind=kOutput, …`
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import prod
from typing import Final, TypeAlias

from msgspec import Struct

from tb_perfadvisor.ingest.xspace.interpret.hlo.replica_groups import (
    group_axes,
    group_members,
    group_names,
)
from tb_perfadvisor.trace import CopyDirection, EventKind, KernelFamily, Precision
from tb_perfadvisor.trace.hlo_text import Shape, parse_instruction, parse_shapes

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
_COPIES: Final = ("copy", "copy-start", "copy-done")
_SLICES: Final = re.compile(r"(?:dynamic-(?:update-)?)?slice(?:-start|-done)?")
_Shapes: TypeAlias = Sequence[Shape]
_PRECISION: Final = {
    4: Precision.BITS_8,
    8: Precision.BITS_8,
    16: Precision.BITS_16,
    32: Precision.BITS_32,
    64: Precision.BITS_64,
}


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
    neighbors: int
    """Members next to each in a torus, by the mesh axes that the group spans; -1 if unknown."""
    group_names: str
    """The mesh axes that the group spans; empty if they have no names."""
    group_members: str
    """The groups as the text has them; empty if unknown."""
    copy_direction: CopyDirection
    copy_bytes: int
    memory_bytes: int
    """Bytes of its arrays in the device's memory, without padding, if others are on the chip; else
    -1."""


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
    instruction = parse_instruction(text)
    opcode = instruction.opcode if instruction else ""
    results = instruction.results if instruction else parse_shapes(body)
    operands = instruction.operands if instruction else ()
    label = (category or opcode or name).lower()
    collective = _collective(label, opcode, name)
    sliced = _sliced_on_host(opcode, results, operands)
    is_relayout = _is_relayout(opcode, results, operands)
    if is_relayout or _is_prefetch(opcode, results, operands):
        kind = EventKind.KERNEL
    elif sliced is not None:
        kind = EventKind.COPY
    else:
        kind = _kind(label, opcode, name, collective, text)
    is_start = "-start" in (opcode or name)
    axes = group_axes(text)
    is_contraction = "convolution" in label or opcode in ("dot", "convolution")
    target = _CONTRACTING_TARGET.search(text) if opcode == "custom-call" else None
    is_contraction |= target is not None
    family = KernelFamily.LAYOUT if is_relayout else KernelFamily.OTHER
    if kind == EventKind.KERNEL and not opcode.startswith("copy"):
        family = _family(label, opcode, name, path, text)
    precision = _precision(operands if is_contraction and operands else results, is_contraction)
    if (opcode in _COPIES and not is_relayout) or sliced is not None:
        precision = Precision.UNKNOWN
    return Operation(
        name=name,
        opcode=opcode,
        category=category or opcode,
        kind=kind,
        family=family,
        precision=precision,
        is_container=(opcode or label) in ("while", "conditional", "call"),
        collective=collective,
        collective_bytes=-1 if is_start else _collective_bytes(opcode, results, operands),
        # A reduction may round its result, which is not sent.
        collective_dtype=next((shape.dtype for shape in (*operands, *results)), ""),
        group_size=min(prod(axes), 2**31 - 1) if axes else -1,
        neighbors=sum(1 if size == 2 else 2 for size in axes if size > 1) if axes else -1,
        group_names=group_names(text),
        group_members=group_members(text),
        copy_direction=_copy_direction(opcode or name, results, operands),
        copy_bytes=-1
        if is_start or not results
        else min(_size_bytes(shape) for shape in sliced or results[:1]),
        memory_bytes=_memory_bytes([*results, *operands]),
    )


def _memory_bytes(arrays: _Shapes) -> int:
    """Bytes in the device's memory; -1 if no array is on the chip."""
    # Flags and scalars, which are in other memories on the chip, move no bytes worth counting.
    if not any(shape.memory_space and not shape.is_on_host and shape.dims for shape in arrays):
        return -1
    return sum(_size_bytes(shape) for shape in arrays if not shape.memory_space)


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
    if word in _COPIES or label in _COPIES:
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


def _precision(shapes: _Shapes, is_contraction: bool) -> Precision:
    """The narrowest floating-point type of the arrays; that of the factors in a contraction."""
    if is_contraction:
        return _precision_of_product(shapes)
    widths = [_width(shape) for shape in shapes if shape.dtype[0] in "bf" and _width(shape)]
    return _PRECISION.get(min(widths), Precision.UNKNOWN) if widths else Precision.UNKNOWN


def _precision_of_product(operands: _Shapes) -> Precision:
    """The type that a product multiplies in, by all arrays that it or its fusion reads.

    Next to a wider factor, one of 8 or 4 bits is widened first: stored weights, or random bits. So
    it takes two narrow factors to multiply in 8 bits.
    """
    floats = [_width(shape) for shape in operands if shape.dtype[0] in "bf"]
    wide = [width for width in floats if width > 8]
    # Scales and biases have fewer dimensions than the factors.
    factors = [
        _width(shape) for shape in operands if shape.dtype[0] in "bf" and len(shape.dims) > 1
    ]
    has_wide_factor = any(width > 8 for width in factors)
    narrow = [shape for shape in operands if shape.dtype[0] in "fs" and 0 < _width(shape) <= 8]
    unsigned = [shape for shape in operands if shape.dtype[0] == "u" and _width(shape) <= 8]
    if len(narrow) > 1 or ((narrow or unsigned) and not has_wide_factor):
        return Precision.BITS_8
    return _PRECISION.get(min(wide), Precision.UNKNOWN) if wide else Precision.UNKNOWN


def _width(shape: Shape) -> int:
    """Bits of an element; 0 for predicates and complex numbers."""
    return 0 if shape.dtype[0] in "pc" else shape.element_bits


def _size_bytes(shape: Shape) -> int:
    """Without padding; -1 if it is beyond what any memory holds."""
    size = shape.elements * shape.element_bits // 8
    return size if size < 2**62 else -1


def _collective_bytes(opcode: str, results: _Shapes, operands: _Shapes) -> int:
    """Size of the full buffer: the larger of result and operands (result only for `-done`)."""
    result = sum(_size_bytes(shape) for shape in results)
    if opcode.endswith("-done"):
        return result or -1
    return max(result, sum(_size_bytes(shape) for shape in operands)) or -1


def _copied(opcode: str, results: _Shapes, operands: _Shapes) -> tuple[Shape, Shape] | None:
    """Target and source of a copy; None if the text does not tell.

    The result of a start, and the operand of a done, is (target, source, context).
    """
    if not results:
        return None
    if (sliced := _sliced_on_host(opcode, results, operands)) is not None:
        return sliced
    if opcode.endswith("-start") and len(results) > 1:
        return results[0], results[1]
    if len(operands) > 1:
        return results[0], operands[1]
    return (results[0], operands[0]) if operands else None


def _sliced_on_host(opcode: str, results: _Shapes, operands: _Shapes) -> tuple[Shape, Shape] | None:
    """Target and source of a slice between the memories of device and host; None for others.

    A scan whose activations are kept on the host copies a slice of them in each trip.
    """
    if not _SLICES.fullmatch(opcode):
        return None
    arrays = [shape for shape in (*results, *operands) if shape.dims]
    on_host = [shape for shape in arrays if shape.is_on_host]
    on_device = [shape for shape in arrays if not shape.is_on_host]
    if not on_host or not on_device:
        return None
    return (on_host[0], on_device[0]) if "update" in opcode else (on_device[0], on_host[0])


def _is_relayout(opcode: str, results: _Shapes, operands: _Shapes) -> bool:
    """Whether a copy only changes the layout of an array, which is work of the core."""
    copied = _copied(opcode, results, operands) if opcode == "copy" else None
    if copied is None or any(shape.is_on_host or not shape.layout for shape in copied):
        return False
    target, source = copied
    return target.layout != source.layout


def _is_prefetch(opcode: str, results: _Shapes, operands: _Shapes) -> bool:
    """Whether a copy moves an array to or from memory on the chip.

    XLA inserts them ahead of the operations that use the array. Waiting for one is part of
    computing at the speed of the device's memory, which XProf also counts as compute.
    """
    copied = _copied(opcode, results, operands) if opcode in _COPIES else None
    return (
        copied is not None
        and not any(shape.is_on_host for shape in copied)
        and any(shape.memory_space for shape in copied)
    )


def _copy_direction(opcode: str, results: _Shapes, operands: _Shapes) -> CopyDirection:
    """The direction by the memories of source and target; `S(5)` in a layout is host memory."""
    copied = _copied(opcode, results, operands)
    if copied is None:
        return CopyDirection.UNKNOWN
    target, source = copied
    if target.is_on_host:
        on_host = CopyDirection.HOST_TO_HOST, CopyDirection.DEVICE_TO_HOST
        return on_host[0] if source.is_on_host else on_host[1]
    if source.is_on_host:
        return CopyDirection.HOST_TO_DEVICE
    return CopyDirection.DEVICE_TO_DEVICE
