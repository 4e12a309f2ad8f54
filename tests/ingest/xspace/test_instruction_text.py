"""HLO text of the instructions of recorded programs."""

from __future__ import annotations

import pytest

from tb_perfadvisor.ingest.xspace.decode.messages import HloProto
from tb_perfadvisor.ingest.xspace.interpret.hlo.operation import instruction_line
from tests.support.hlo_programs import instruction, shaped

# `PrimitiveType` of xla_data.proto in openxla/xla, in the names of HLO's text.
TYPES = {
    1: "pred", 2: "s8", 3: "s16", 4: "s32", 5: "s64", 6: "u8", 7: "u16", 8: "u32", 9: "u64",
    10: "f16", 11: "f32", 12: "f64", 15: "c64", 16: "bf16", 17: "token", 18: "c128",
    19: "f8e5m2", 20: "f8e4m3fn", 21: "s4", 22: "u4", 23: "f8e4m3b11fnuz", 24: "f8e5m2fnuz",
    25: "f8e4m3fnuz", 28: "f8e4m3", 29: "f8e3m4",
}  # fmt: skip


@pytest.mark.parametrize(("number", "name"), TYPES.items(), ids=TYPES.values())
def test_types_have_the_names_of_hlo(number: int, name: str) -> None:
    computation = HloProto().hlo_module.computations.add(id=1)
    operand = instruction(computation, 1, "x", "parameter")
    shaped(operand, number, 8, 32)
    result = instruction(computation, 2, "y", "negate")
    shaped(result, number, 8, 32)
    line = instruction_line(result, [operand])
    assert line.startswith(f"%y = {name}[8,32]")
    assert f"negate({name}[8,32]" in line
    assert line.endswith("%x)")
