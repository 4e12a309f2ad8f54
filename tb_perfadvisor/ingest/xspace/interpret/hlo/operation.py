"""One operation of a program: its text, shapes, groups and lines.

Reads which devices take part in a collective, in the forms that XLA has for it.

A list names the members of each group: `{{0,1},{2,3}}`. An iota numbers the devices of a mesh, and
the last axes are the group: `[4,2]<=[2,4]T(1,0)`. A mesh names its axes, and then those of the
group: `mesh['data'=2,'model'=4] {'model'}`, or a part of one: `{'model':(2)2}` (source:
xla/hlo/ir/replica_group.cc).

What the text of an XLA operation says of it: kind, family, precision, communication, copies.

TPU profiles contain the output of `HloInstruction::ToString`:
`%fusion.1 = bf16[8,128]{1,0:T(8,128)(2,1)} fusion(bf16[8,64]{1,0} %a, …), kind=kOutput, …`
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import prod
from typing import Any, Final, TypeAlias

from msgspec import Struct

from tb_perfadvisor.patterns import regex
from tb_perfadvisor.trace import CopyDirection, EventKind, KernelFamily, Precision
from tb_perfadvisor.trace.hlo_text import Shape, parse_instruction, parse_shapes
from tb_perfadvisor.trace.names import is_framework_file

_LIST: Final = regex(r"replica_groups=\{\{([\d,]*)\}")
_IOTA: Final = regex(
    r"replica_groups=\[(\d{1,18}),(\d{1,18})\]<=\[([\d,]{1,200})\](?:T\(([\d,]{1,200})\))?"
)
_MESH: Final = regex(r"replica_groups=mesh\[([^\[\]]*)\][^{]{0,200}\{([^{}]*)\}")
_MESH_AXIS: Final = regex(r"(?<![^,'=])'?([^,'=]+)'?=(\d{1,9})")
_GROUPS: Final = regex(r"replica_groups=(\{\{[\d,{}]*\}\}|\[[\d,]*\]<=\[[\d,]*\](?:T\([\d,]*\))?)")
_MOST_CHARACTERS: Final = 80
_GROUP_AXIS: Final = regex(r"'?([^,':]+)'?(?::\(\d{1,9}\)(\d{1,9}))?")


def group_axes(text: str) -> tuple[int, ...]:
    """The sizes of the mesh axes that a group of a collective spans; empty if unknown.

    `text` is the HLO text of the collective. A list of members counts as one axis.
    """
    if "replica_groups=" not in text:
        return ()
    if match := _MESH.search(text):
        return _axes_by_name(match[1], match[2])
    if match := _IOTA.search(text):
        return _last_axes(int(match[2]), match[3], match[4])
    match = _LIST.search(text)
    return (len(match[1].split(",")),) if match and match[1] else ()


def group_names(text: str) -> str:
    """The mesh axes that a group of a collective spans, such as `data,fsdp`; empty if unnamed."""
    match = _MESH.search(text) if "replica_groups=mesh" in text else None
    if match is None:
        return ""
    return ",".join(name.strip() for name, _ in _GROUP_AXIS.findall(match[2]))


def group_members(text: str) -> str:
    """The groups of a collective as the text has them, shortened; empty if they are unknown."""
    match = _GROUPS.search(text) if "replica_groups=" in text else None
    if match is None:
        return ""
    whole = match[1]
    return whole if len(whole) <= _MOST_CHARACTERS else f"{whole[: _MOST_CHARACTERS - 1]}…"


def _axes_by_name(mesh: str, group: str) -> tuple[int, ...]:
    size_of = {name: int(size) for name, size in _MESH_AXIS.findall(mesh)}
    sizes = [
        int(part) if part else size_of.get(name, 0) for name, part in _GROUP_AXIS.findall(group)
    ]
    return tuple(sizes) if all(sizes) else ()


def _last_axes(size: int, dims: str, order: str | None) -> tuple[int, ...]:
    """The last axes of a mesh whose product is the group's size; else one axis of that size."""
    sizes = [int(part) for part in dims.split(",") if part]
    places = [int(part) for part in (order or "").split(",") if part] or range(len(sizes))
    axes: list[int] = []
    if sorted(places) == list(range(len(sizes))):
        for place in reversed(places):
            if prod(axes) < size:
                axes.insert(0, sizes[place])
    return tuple(axes) if axes and prod(axes) == size else (size,)


_DIMENSION_LABELS: Final = regex(r"dim_labels=(\w+)_(\w+)->(\w+)")
_COLLECTIVE: Final = regex(
    r"%?((?:ragged-)?all-to-all|all-reduce-scatter|all-reduce|all-gather|reduce-scatter"
    r"|collective-permute|collective-broadcast|async-collective)(?![a-z])"
)
# Opcodes that do not tell the operation; its name does.
_WRAPPERS: Final = frozenset(
    {"", "fusion", "custom-call", "async-start", "async-update", "async-done"}
)
# Library calls for matrix products and convolutions (`__cublas$gemm`).
_CONTRACTING_TARGET: Final = regex(r'custom_call_target="[^"]*(gemm|matmul|[cC]onv)')
_COPIES: Final = ("copy", "copy-start", "copy-done")
_SLICES: Final = regex(r"(?:dynamic-(?:update-)?)?slice(?:-start|-done)?")
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

    `text` is its HLO text, or only its name. `name` is its short name (`fusion.1`), by default
    taken from the text. `category` is XProf's `hlo_category`, and `path` the framework's name of it
    (`jit(f)/dot_general`), if the profile has them.
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
    word = opcode or name.rstrip(".0123456789")
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
    (regex(pattern), family)
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
    (regex(r"reduce(?!-precision)"), KernelFamily.REDUCTION),
    (regex(r"transpose|concatenate"), KernelFamily.LAYOUT),
)
_ATTENTION: Final = regex(r"(?i)flash|splash|attention|attn|fmha")
_MATMUL_PATH: Final = regex(r"(?i)dot_general|einsum|matmul|/dot\b|_dot")
_CONVOLUTION_PATH: Final = regex(r"(?i)conv_general|conv[123]d|convolution$|/conv")


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
    widths = [shape.element_bits for shape in shapes if shape.dtype[0] in "bf"]
    return _PRECISION.get(min(widths), Precision.UNKNOWN) if widths else Precision.UNKNOWN


def _precision_of_product(operands: _Shapes) -> Precision:
    """The type that a product multiplies in, by all arrays that it or its fusion reads.

    Next to a wider factor, one of 8 or 4 bits is widened first: stored weights, or random bits. So
    it takes two narrow factors to multiply in 8 bits.
    """
    floats = [shape.element_bits for shape in operands if shape.dtype[0] in "bf"]
    wide = [width for width in floats if width > 8]
    # Scales and biases have fewer dimensions than the factors.
    factors = [
        shape.element_bits for shape in operands if shape.dtype[0] in "bf" and len(shape.dims) > 1
    ]
    has_wide_factor = any(width > 8 for width in factors)
    narrow = [shape for shape in operands if shape.dtype[0] in "fs" and shape.element_bits <= 8]
    unsigned = [shape for shape in operands if shape.dtype[0] == "u" and shape.element_bits <= 8]
    if len(narrow) > 1 or ((narrow or unsigned) and not has_wide_factor):
        return Precision.BITS_8
    return _PRECISION.get(min(wide), Precision.UNKNOWN) if wide else Precision.UNKNOWN


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


# `PrimitiveType` of xla_data.proto.
_TYPES: Final = {
    **{1: "pred", 2: "s8", 3: "s16", 4: "s32", 5: "s64", 6: "u8", 7: "u16", 8: "u32", 9: "u64"},
    **{10: "f16", 11: "f32", 12: "f64", 15: "c64", 16: "bf16", 17: "token", 18: "c128"},
    **{19: "f8e5m2", 20: "f8e4m3fn", 21: "s4", 22: "u4", 23: "f8e4m3b11fnuz"},
    **{24: "f8e5m2fnuz", 25: "f8e4m3fnuz", 28: "f8e4m3", 29: "f8e3m4"},
}
# `PrecisionConfig.Precision` of xla_data.proto; 0 is the default, which the text leaves out.
_PRECISIONS: Final = {0: "default", 1: "high", 2: "highest"}


def instruction_line(instruction: Any, operands: Iterable[Any]) -> str:
    """The text of an instruction: `%name = shape opcode(shape %operand, …), attributes`.

    The instruction is one of an `HloProto`. Operands that are missing are None.
    """
    inside = ", ".join(
        f"{shape_text(operand.shape)} %{decoded(operand.name)}" for operand in operands if operand
    )
    name, opcode = decoded(instruction.name), decoded(instruction.opcode)
    line = f"%{name} = {shape_text(instruction.shape)} {opcode}({inside})"
    if instruction.fusion_kind:
        line += f", kind={decoded(instruction.fusion_kind)}"
    if instruction.custom_call_target:
        line += f', custom_call_target="{decoded(instruction.custom_call_target)}"'
    return line


def product_line(instruction: Any, operands: Iterable[Any]) -> str:
    """The text of a matrix product or convolution with what it contracts, and how precisely."""
    line = instruction_line(instruction, operands)
    if instruction.opcode == b"dot":
        dims = instruction.dot_dimensions
        for name, numbers in (
            ("lhs_batch_dims", dims.lhs_batch),
            ("lhs_contracting_dims", dims.lhs_contracting),
            ("rhs_batch_dims", dims.rhs_batch),
            ("rhs_contracting_dims", dims.rhs_contracting),
        ):
            line += f", {name}={{{_joined(numbers)}}}" if numbers else ""
    else:
        line += window_text(instruction)
        line += f", dim_labels={_dim_labels(instruction.convolution_dimensions)}"
    for name in ("feature_group_count", "batch_group_count"):
        count = getattr(instruction, name)
        line += f", {name}={count}" if count > 1 else ""
    precisions = [_PRECISIONS.get(int(p), "default") for p in precision_of(instruction)]
    if any(precision != "default" for precision in precisions):
        line += f", operand_precision={{{','.join(precisions)}}}"
    path = decoded(instruction.metadata.op_name)
    return line + (f', metadata={{op_name="{path}"}}' if path else "")


def precision_of(instruction: Any) -> list[int]:
    """`PrecisionConfig.Precision` of each operand; empty if the program does not say."""
    return list(instruction.precision_config.operand_precision)


def decoded(value: bytes) -> str:
    """Text of a program, in which broken characters are replaced."""
    return value.decode("utf-8", "replace")


def window_text(instruction: Any) -> str:
    """The window of a convolution or of a reduction: `, window={size=3x8 stride=1x7}`."""
    dimensions = instruction.window.dimensions
    return f", window={{{_window(dimensions)}}}" if dimensions else ""


def _window(dimensions: Any) -> str:
    """The parts of a window that tell groups from spatial dimensions: `size=3x8 stride=1x7`."""
    parts = [("size", [dim.size for dim in dimensions])]
    for name, values in (
        ("stride", [dim.stride for dim in dimensions]),
        ("lhs_dilate", [dim.base_dilation for dim in dimensions]),
    ):
        if any(value > 1 for value in values):
            parts.append((name, values))
    return " ".join(f"{name}={'x'.join(map(str, values))}" for name, values in parts)


def _dim_labels(dims: Any) -> str:
    """Roles of the dimensions of operands and result: `b01f_01io->b01f`."""
    return (
        _labels({dims.input_batch: "b", dims.input_feature: "f"}, dims.input_spatial)
        + "_"
        + _labels(
            {dims.kernel_input_feature: "i", dims.kernel_output_feature: "o"}, dims.kernel_spatial
        )
        + "->"
        + _labels({dims.output_batch: "b", dims.output_feature: "f"}, dims.output_spatial)
    )


def _labels(named: dict[int, str], spatial: Iterable[int]) -> str:
    label = named | {int(dim): str(number) for number, dim in enumerate(spatial)}
    return "".join(label[dim] for dim in sorted(label))


def shape_text(shape: Any, depth: int = 0) -> str:
    """The text of a shape: `bf16[8,128]{1,0:T(8,128)(2,1)}`."""
    if shape.tuple_shapes and depth < 10:
        return f"({', '.join(shape_text(part, depth + 1) for part in shape.tuple_shapes)})"
    kind = _TYPES.get(int(shape.element_type), "opaque")
    return f"{kind}[{_joined(shape.dimensions)}]{_layout(shape.layout)}"


def _layout(layout: Any) -> str:
    """The order of the dimensions, the tiles and the memory: `{1,0:T(8,128)(2,1)S(1)}`."""
    tiles = "".join(f"({_joined(tile.dimensions)})" for tile in layout.tiles)
    space = f"S({layout.memory_space})" if layout.memory_space else ""
    details = f":{'T' if tiles else ''}{tiles}{space}" if tiles or space else ""
    order = _joined(layout.minor_to_major)
    return f"{{{order}{details}}}" if order or details else ""


def _joined(numbers: Iterable[int]) -> str:
    return ",".join(map(str, numbers))


def source_line(module: Any, instruction: Any) -> str:
    """File and line, such as `train.py:37`; empty if the program does not tell.

    Instructions used to name them. Now they name a frame of a table, which holds the frames of all
    stacks: the innermost one of the user's code counts, or else the innermost. Numbers count
    from 1. Of a file in the table, the last folder is kept: its path is that of the machine.
    """
    metadata = instruction.metadata
    if metadata.source_file:
        return f"{decoded(metadata.source_file)}:{metadata.source_line}"
    innermost = ""
    for path, line in _stack(module.stack_frame_index, int(metadata.stack_frame_id)):
        place = f"{_short(path)}:{line}"
        if not is_framework_file(path):
            return place
        innermost = innermost or place
    return innermost


def _stack(index: Any, frame_id: int) -> Iterator[tuple[str, int]]:
    """The file and line of each frame of a stack, the innermost first."""
    frame = _numbered(index.stack_frames, frame_id)
    for _ in index.stack_frames:  # no stack has more, even if its frames form a circle
        place = _numbered(index.file_locations, int(frame.file_location_id)) if frame else None
        name = _numbered(index.file_names, int(place.file_name_id)) if place else None
        if frame is None or place is None or name is None:
            return
        yield decoded(name).replace("\\", "/"), int(place.line)
        frame = _numbered(index.stack_frames, int(frame.parent_frame_id))


def _short(path: str) -> str:
    return "/".join(path.rsplit("/", 2)[-2:])


def _numbered(rows: Sequence[Any], number: int) -> Any | None:
    return rows[number - 1] if 0 < number <= len(rows) else None
