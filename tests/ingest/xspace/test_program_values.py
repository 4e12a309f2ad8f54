"""The values of a program are found through tuples, fusions, loops and asynchronous copies."""

from __future__ import annotations

from typing import Any

import pytest

from tb_perfadvisor.ingest.xspace.decode.messages import HloProto
from tb_perfadvisor.ingest.xspace.interpret.hlo.programs import program_values
from tb_perfadvisor.trace.program import Program
from tests.support.hlo_programs import added

ENTRY, FUSED, BODY, CONDITION = 1, 2, 3, 4


def read(proto: Any) -> Program:
    proto.hlo_module.entry_computation_id = ENTRY
    program = program_values("jit_f(1)", proto)
    assert program is not None
    return program


def row(program: Program, opcode: str) -> int:
    (found,) = program.rows_of([opcode])
    return found


def test_a_fusion_passes_its_operands_to_what_is_inside() -> None:
    proto = HloProto()
    entry, fused = (proto.hlo_module.computations.add(id=id_) for id_ in (ENTRY, FUSED))
    added(entry, 1, "parameter", shape="8,32")
    added(entry, 2, "parameter", shape="32,64", parameter_number=1)
    added(entry, 3, "fusion", 1, 2, shape="8,64").called_computation_ids.append(FUSED)
    added(entry, 4, "tuple", 3, 1)
    entry.root_id = 4
    added(fused, 11, "parameter", shape="8,32")
    added(fused, 12, "parameter", shape="32,64", parameter_number=1)
    added(fused, 13, "dot", 11, 12, shape="8,64")
    added(fused, 14, "tanh", 13, shape="8,64")
    fused.root_id = 14
    proto.hlo_module.input_output_alias.entries.add(parameter_number=1)

    program = read(proto)

    dot, tanh = row(program, "dot"), row(program, "tanh")
    left, right = program.rows_of(["parameter"])
    assert program.operands(dot) == [left, right]
    assert program.operands(dot, 1) == [right]
    assert program.users(dot) == [tanh]
    assert program.kernel_of(dot) == program.kernel_of(tanh) == "fusion.3"
    assert program.is_result.tolist() == [True, False, False, True]
    assert program.is_aliased[[left, right]].tolist() == [False, True]
    assert program.shape_of(tanh).dims == (8, 64)
    assert len(program) == 4


def test_a_loop_passes_values_from_trip_to_trip() -> None:
    proto = HloProto()
    entry, body, condition = (
        proto.hlo_module.computations.add(id=id_) for id_ in (ENTRY, BODY, CONDITION)
    )
    added(entry, 1, "parameter", shape="8,32")
    added(entry, 2, "constant")
    added(entry, 3, "tuple", 2, 1)
    added(entry, 4, "while", 3).called_computation_ids.extend([BODY, CONDITION])
    added(entry, 5, "get-tuple-element", 4, tuple_index=1)
    entry.root_id = 5
    added(body, 11, "parameter")
    added(body, 12, "get-tuple-element", 11, tuple_index=0)
    added(body, 13, "get-tuple-element", 11, tuple_index=1)
    added(body, 14, "tanh", 13, shape="8,32")
    added(body, 15, "add", 12, 12)
    added(body, 16, "tuple", 15, 14)
    body.root_id = 16
    added(condition, 21, "parameter")
    added(condition, 22, "get-tuple-element", 21, tuple_index=0)
    added(condition, 23, "constant").literal.s32s.append(12)
    compare = added(condition, 24, "compare", 22, 23)
    compare.comparison_direction = b"LT"
    compare.shape.element_type = 1
    condition.root_id = 24

    program = read(proto)

    tanh, argument = row(program, "tanh"), row(program, "parameter")
    assert sorted(program.operands(tanh)) == sorted([argument, tanh])
    assert program.is_result[tanh]
    assert not program.is_result[argument]
    assert program.runs[tanh] == 12
    assert program.runs[argument] == 1
    assert [(loop.trips, loop.parent) for loop in program.loops] == [(12, -1)]
    assert program.loop[[tanh, argument]].tolist() == [0, -1]


def test_a_loop_in_a_loop_names_the_one_around_it() -> None:
    proto = HloProto()
    entry, body, inner = (proto.hlo_module.computations.add(id=id_) for id_ in (ENTRY, BODY, 40))
    added(entry, 1, "parameter", shape="8,32")
    outer = added(entry, 2, "while", 1)
    added(body, 11, "parameter")
    added(body, 12, "tanh", 11, shape="8,32")
    nested = added(body, 13, "while", 12)
    added(inner, 41, "parameter")
    added(inner, 42, "negate", 41, shape="8,32")
    entry.root_id, body.root_id, inner.root_id = 2, 13, 42
    for loop, called, trips in ((outer, BODY, 5), (nested, 40, 7)):
        loop.called_computation_ids.append(called)
        loop.backend_config = b'{"known_trip_count":{"n":"%d"}}' % trips

    program = read(proto)

    assert [(loop.trips, loop.parent) for loop in program.loops] == [(5, -1), (7, 0)]
    assert program.loop[[row(program, "tanh"), row(program, "negate")]].tolist() == [0, 1]
    assert program.runs[row(program, "negate")] == 35


def test_a_prefetch_in_slices_is_the_array_itself() -> None:
    proto = HloProto()
    entry, first, second = (
        proto.hlo_module.computations.add(id=id_) for id_ in (ENTRY, FUSED, BODY)
    )
    added(entry, 1, "parameter", shape="64,32")
    for id_, computation in ((2, FUSED), (3, BODY)):
        added(entry, id_, "async-start", 1).called_computation_ids.append(computation)
        added(entry, id_ + 10, "async-done", id_, shape="32,32")
    for computation in (first, second):
        added(computation, 21, "parameter", shape="64,32")
        added(computation, 22, "slice", 21, shape="32,32")
        computation.root_id = 22
    added(entry, 5, "custom-call", 12, 13, shape="64,32").custom_call_target = b"ConcatBitcast"
    added(entry, 6, "negate", 5, shape="64,32")
    entry.root_id = 6

    program = read(proto)

    assert program.operands(row(program, "negate")) == [row(program, "parameter")]


@pytest.mark.parametrize(
    ("type_", "dims", "parts"), [(0, (), 1), (3, (4, 1), 4), (3, (1, 2, 4), 2), (4, (), 0)]
)
def test_arguments_say_in_how_many_parts_they_are(
    type_: int, dims: tuple[int, ...], parts: int
) -> None:
    proto = HloProto()
    entry = proto.hlo_module.computations.add(id=ENTRY)
    added(entry, 1, "parameter", shape="8,32")
    entry.root_id = 1
    sharding = proto.hlo_module.spmd_parameters_shardings.add(type=type_)
    sharding.tile_assignment_dimensions.extend(dims)
    sharding.replicate_on_last_tile_dim = int(len(dims) == 3)
    proto.hlo_module.device_assignment.computation_count = 8

    program = read(proto)

    assert program.parts.tolist() == [parts]
    assert program.devices == 8


def test_a_program_without_an_entry_is_none() -> None:
    assert program_values("jit_f(1)", HloProto()) is None
