"""XLA programs, as stored in xplanes."""

from __future__ import annotations

from typing import Any

from tb_perfadvisor.ingest.xspace.decode.messages import HloProto

F32, BF16 = 11, 16  # PrimitiveType in xla_data.proto


def instruction(computation: Any, id_: int, name: str, opcode: str, **fields: Any) -> Any:
    added = computation.instructions.add(id=id_, name=name.encode(), opcode=opcode.encode())
    for field, value in fields.items():
        setattr(added, field, value.encode())
    return added


def shaped(added: Any, type_: int, *dimensions: int) -> None:
    added.shape.element_type = type_
    added.shape.dimensions.extend(dimensions)
    added.shape.layout.minor_to_major.extend(reversed(range(len(dimensions))))


def added(
    computation: Any, id_: int, opcode: str, *reads: int, shape: str = "", **fields: Any
) -> Any:
    """Add an instruction named `opcode.id`, with a shape such as `8,32{0,1}`.

    Fields are numbers: `parameter_number`, `tuple_index`.
    """
    result = instruction(computation, id_, f"{opcode}.{id_}", opcode)
    result.operand_ids.extend(reads)
    if shape:
        dims, _, order = shape.partition("{")
        shaped(result, BF16, *map(int, dims.split(",")))
        if order:
            result.shape.layout.ClearField("minor_to_major")
            result.shape.layout.minor_to_major.extend(map(int, order.strip("}").split(",")))
    for field, value in fields.items():
        setattr(result, field, value)
    return result


def program() -> bytes:
    """f32[8,64] = fusion(bf16[8,32] a, bf16[32,64] b), whose body is a dot."""
    proto = HloProto()
    body = proto.hlo_module.computations.add(id=1)
    instruction(body, 10, "dot.1", "dot")
    entry = proto.hlo_module.computations.add(id=2)
    shaped(instruction(entry, 20, "a", "parameter"), BF16, 8, 32)
    shaped(instruction(entry, 21, "b", "parameter"), BF16, 32, 64)
    fusion = instruction(entry, 22, "gemm_fusion_dot", "fusion", fusion_kind="kCustom")
    shaped(fusion, F32, 8, 64)
    fusion.operand_ids.extend([20, 21, 99])  # 99 does not exist
    fusion.called_computation_ids.append(1)
    fusion.metadata.source_file, fusion.metadata.source_line = b"train.py", 37
    data: bytes = proto.SerializeToString()
    return data
