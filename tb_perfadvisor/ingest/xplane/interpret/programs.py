"""Looks up XLA operations in the programs of a profile.

GPU planes only name the operation of a kernel. Its attributes are in the program (`HloProto`, in
`/host:metadata`).
"""

from __future__ import annotations

from typing import Any, Final

from msgspec import Struct

from tb_perfadvisor.ingest.xplane.decode.planes import Plane
from tb_perfadvisor.ingest.xplane.interpret.hlo_text import Operation, parse_operation

# `PrimitiveType` of xla_data.proto.
_TYPES: Final = {
    **{1: "pred", 2: "s8", 3: "s16", 4: "s32", 5: "s64", 6: "u8", 7: "u16", 8: "u32", 9: "u64"},
    **{10: "f16", 11: "f32", 12: "f64", 15: "c64", 16: "bf16", 17: "token", 18: "c128"},
    **{19: "f8e5m2", 20: "f8e4m3fn", 21: "s4", 22: "u4", 23: "f8e4m3b11fnuz"},
    **{24: "f8e5m2fnuz", 25: "f8e4m3fnuz", 28: "f8e4m3", 29: "f8e3m4"},
}
_FUSIONS: Final = {
    "kLoop": "loop fusion",
    "kInput": "input fusion",
    "kOutput": "output fusion",
    "kCustom": "custom fusion",
}


class ProgramOperation(Struct, frozen=True):
    """An instruction of a program."""

    text: str
    source: str
    """Such as `file.py:37`; empty if unknown."""
    path: str
    """Such as `jit(step)/layer/dot_general`; empty if unknown."""
    operation: Operation


class Programs:
    """The programs of a profile, decoded on access."""

    def __init__(self) -> None:
        self._bytes: dict[str, bytes] = {}
        self._decoded: dict[str, _Program] = {}

    def add(self, plane: Plane) -> None:
        """Add the programs of `/host:metadata` without decoding them."""
        names = plane.metadata.names
        for row, proto in plane.metadata.values("Hlo Proto").items():
            if isinstance(proto, bytes):
                self._bytes[names[row]] = proto

    def look_up(self, module: str, operation: str) -> ProgramOperation | None:
        """An operation of a module (`jit_f(19)`); None if the profile does not contain it."""
        if module not in self._decoded:
            self._decoded[module] = _Program(self._bytes.pop(module, b""))
        return self._decoded[module].look_up(operation)


class _Program:
    """A program with its instructions by name, interpreted on access."""

    def __init__(self, proto: bytes) -> None:
        # Imported on use, because building the messages takes as long as reading a small profile.
        from tb_perfadvisor.ingest.xplane.decode.hlo_proto import decode_program

        self._message = decode_program(proto)
        # Names are unique in a module.
        self._place = {
            instruction.name: (number, place)
            for number, computation in enumerate(self._message.hlo_module.computations)
            for place, instruction in enumerate(computation.instructions)
        }
        self._by_id: dict[int, dict[int, Any]] = {}
        self._contracts: dict[int, bool] | None = None

    def look_up(self, name: str) -> ProgramOperation | None:
        number, place = self._place.get(name.encode(), (-1, -1))
        if number < 0:
            return None
        instructions = self._message.hlo_module.computations[number].instructions
        if number not in self._by_id:
            self._by_id[number] = {other.id: other for other in instructions}
        by_id, instruction = self._by_id[number], instructions[place]
        text = _line(name, instruction, [by_id.get(id_) for id_ in instruction.operand_ids])
        file = _text(instruction.metadata.source_file)
        path = _text(instruction.metadata.op_name)
        return ProgramOperation(
            text=text,
            source=f"{file}:{instruction.metadata.source_line}" if file else "",
            path=path,
            operation=parse_operation(
                text,
                name=name,
                category=_category(instruction, self._contracting()),
                path=path,
            ),
        )

    def _contracting(self) -> dict[int, bool]:
        """Whether each computation, by id, contains a matrix product or convolution."""
        if self._contracts is None:
            self._contracts = {
                int(computation.id): any(
                    instruction.opcode in (b"dot", b"convolution")
                    for instruction in computation.instructions
                )
                for computation in self._message.hlo_module.computations
            }
        return self._contracts


def _category(instruction: Any, contracts: dict[int, bool]) -> str:
    """XProf's category: a fusion that contains a contraction is a `convolution fusion`."""
    opcode = _text(instruction.opcode)
    if opcode != "fusion":
        return opcode
    if any(contracts.get(int(id_)) for id_ in instruction.called_computation_ids):
        return "convolution fusion"
    return _FUSIONS.get(_text(instruction.fusion_kind), "fusion")


def _line(name: str, instruction: Any, operands: list[Any]) -> str:
    inside = ", ".join(
        f"{_shape(operand.shape)} %{_text(operand.name)}" for operand in operands if operand
    )
    line = f"%{name} = {_shape(instruction.shape)} {_text(instruction.opcode)}({inside})"
    if instruction.fusion_kind:
        line += f", kind={_text(instruction.fusion_kind)}"
    if instruction.custom_call_target:
        line += f', custom_call_target="{_text(instruction.custom_call_target)}"'
    return line


def _shape(shape: Any, depth: int = 0) -> str:
    if shape.tuple_shapes and depth < 10:
        return f"({', '.join(_shape(part, depth + 1) for part in shape.tuple_shapes)})"
    dimensions = ",".join(map(str, shape.dimensions))
    layout = ",".join(map(str, shape.layout.minor_to_major))
    suffix = f"{{{layout}}}" if layout else ""
    return f"{_TYPES.get(int(shape.element_type), 'opaque')}[{dimensions}]{suffix}"


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace")
