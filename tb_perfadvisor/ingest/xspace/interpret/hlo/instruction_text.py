"""Writes instructions of XLA programs as HLO text, in the form that TPU profiles contain."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

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

    Args:
        instruction: An instruction of an `HloProto`.
        operands: Its operands; those that are missing are None.
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
