"""XLA programs drawn at random: what is inside of fusions and loops, and what they keep."""

from __future__ import annotations

from itertools import pairwise
from math import prod
from random import Random
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tb_perfadvisor.ingest.xspace.decode.messages import HloProto
from tb_perfadvisor.ingest.xspace.interpret.hlo.fused_operations import (
    Transpositions,
    fused_operations,
    known_before_loop,
    table_lookups,
)
from tb_perfadvisor.ingest.xspace.interpret.hlo.programs import planned_memory, program_values
from tests.support.hlo_programs import F32, added, shaped
from tests.support.night import examples

randoms = st.integers(0, 2**32).map(Random)


def shape_of(dims: list[int], order: list[int]) -> str:
    """The text of a shape; `order` has the fastest dimension first."""
    return f"{','.join(map(str, dims))}{{{','.join(map(str, order))}}}"


def logical_places(dims: list[int], order: list[int]) -> list[int]:
    """For each element in the order of memory, its place when the last dimension is fastest."""
    places = np.arange(prod(dims)).reshape(dims)
    memory: list[int] = places.transpose(list(reversed(order))).ravel().tolist()
    return memory


@examples(100)
@given(randoms)
def test_transposing_bitcasts(random: Random) -> None:
    old = random.choice(([4, 6], [2, 3, 4], [24], [1, 4, 6], [2, 12], [6, 4]))
    new = random.choice(([4, 6], [2, 3, 4], [24], [6, 4], [12, 2], [3, 8], [4, 6, 1]))
    old_order = random.sample(range(len(old)), len(old))
    new_order = random.sample(range(len(new)), len(new))
    computation = HloProto().hlo_module.computations.add(id=1)
    added(computation, 1, "parameter", shape=shape_of(old, list(reversed(range(len(old))))))
    added(computation, 2, "copy", 1, shape=shape_of(old, old_order))
    added(computation, 3, "bitcast", 2, shape=shape_of(new, new_order))
    computation.root_id = 3
    found = Transpositions(computation, {1: computation}).explain("copy.2")
    is_same = logical_places(old, old_order) == logical_places(new, new_order)
    stored_old = [old[dim] for dim in old_order if old[dim] > 1]
    stored_new = [new[dim] for dim in new_order if new[dim] > 1]
    assert found == (divides(stored_old, stored_new) and not is_same)


def divides(one: list[int], other: list[int]) -> bool:
    """Whether sizes in the order of memory are parts of each other, so that none is cut."""
    ends = [{prod(sizes[:count]) for count in range(1, len(sizes) + 1)} for sizes in (one, other)]
    bounds = sorted(ends[0] | ends[1])
    return all(after % before == 0 for before, after in pairwise(bounds))


@examples(100)
@given(randoms)
def test_what_a_loop_knows_before_it_runs(random: Random) -> None:
    body = HloProto().hlo_module.computations.add(id=1)
    added(body, 1, "parameter")
    kinds: dict[int, tuple[str, list[int], int]] = {1: ("parameter", [], 0)}
    for id_ in range(2, random.randint(6, 14)):
        opcode = random.choice(
            ("get-tuple-element", "get-tuple-element", "constant", "add", "add", "copy", "multiply")
        )
        count = {"constant": 0, "copy": 1, "get-tuple-element": 1}.get(opcode, 2)
        reads = [random.choice(list(kinds)) for _ in range(count)]
        if opcode == "get-tuple-element" and random.random() < 0.85:
            reads = [1]
        index = random.randrange(4)
        added(body, id_, opcode, *reads, tuple_index=index)
        kinds[id_] = opcode, reads, index
    elements = [random.choice(list(kinds)) for _ in range(random.randint(1, 4))]
    added(body, 99, "tuple", *elements)
    body.root_id = 99

    def origin(id_: int) -> int:
        opcode, reads, _ = kinds[id_]
        return origin(reads[0]) if opcode == "copy" else id_

    def is_element(id_: int, index: int) -> bool:
        """Whether it is an element of what the loop passes from one trip to the next."""
        opcode, reads, own = kinds[id_]
        return opcode == "get-tuple-element" and reads == [1] and own == index

    def is_foreseeable(index: int) -> bool:
        """Whether it stays as it is, or a constant is added in each trip."""
        if index >= len(elements):
            return False
        last = origin(elements[index])
        if kinds[last][0] == "add":
            terms = [origin(id_) for id_ in kinds[last][1]]
            varying = [term for term in terms if kinds[term][0] != "constant"]
            return len(varying) == 1 and is_element(varying[0], index)
        return is_element(last, index)

    def is_known(id_: int) -> bool:
        opcode, reads, index = kinds[id_]
        if opcode == "get-tuple-element" and reads == [1]:
            return is_foreseeable(index)
        return opcode != "parameter" and all(map(is_known, reads))

    known = {f"{kinds[id_][0]}.{id_}".encode() for id_ in kinds if is_known(id_)}
    if all(is_known(id_) for id_ in elements):
        known.add(b"tuple.99")
    assert known_before_loop(body) == known
    body.root_id = 1
    assert known_before_loop(body) == frozenset()


PLUMBING = ("parameter", "constant", "tuple", "get-tuple-element", "bitcast")


@examples(60)
@given(randoms)
def test_what_is_inside_of_a_fusion(random: Random) -> None:
    module = HloProto().hlo_module
    computations: dict[int, Any] = {}
    inside: dict[int, list[tuple[str, int, str]]] = {}
    calls: dict[int, list[int]] = {}
    for number in range(1, 5):
        computations[number] = computation = module.computations.add(id=number)
        inside[number], calls[number] = [], []
        for id_ in range(random.randint(0, 5)):
            opcode = random.choice(("add", "dot", "convolution", "fusion", *PLUMBING))
            rows = random.choice((1, 2, 5, 7))
            path = random.choice(("", "a", "b"))
            each = added(computation, 10 * number + id_, opcode, shape=f"{rows},3")
            each.metadata.op_name = path.encode()
            if opcode == "fusion":
                called = random.choice((number, number + 1, number + 2))
                each.called_computation_ids.append(called)
                calls[number].append(called)
            inside[number].append((opcode, 3 * rows, path))
    fusion = added(module.computations.add(id=9), 1, "fusion")
    fusion.called_computation_ids.append(1)
    reached: set[int] = set()
    waiting = [1]
    while waiting:
        number = waiting.pop()
        if number in inside and number not in reached:
            reached.add(number)
            waiting += calls[number]
    work = [each for number in reached for each in inside[number] if each[0] not in PLUMBING]
    found = fused_operations(fusion, computations)
    assert found.opcodes == " ".join(sorted({opcode for opcode, *_ in work}))
    assert set(found.paths.split("\n")) - {""} == {path for *_, path in work if path}
    assert found.elements == max((size for _, size, _ in work), default=0)
    products = [size for opcode, size, _ in work if opcode in ("dot", "convolution")]
    largest = max(products, default=0)
    assert bool(found.product) == bool(products)
    assert f"[{largest // 3},3]" in found.product or not products


@examples(60)
@given(randoms)
def test_look_ups_in_tables(random: Random) -> None:
    message = HloProto()
    module = message.hlo_module
    entry = module.computations.add(id=2)
    module.entry_computation_id = 2
    rows, width, result_width = 50, random.choice((1, 8)), random.choice((1, 8))
    type_ = random.choice((F32, 4))  # 4 is s32
    shaped(added(entry, 1, "parameter", parameter_number=0), type_, rows, width)
    shaped(added(entry, 2, random.choice(("convert", "add")), 1), type_, rows, width)
    table = random.choice((1, 2))
    path = random.choice((b"jit(f)/gather", b"jit(f)/transpose(f)/gather", b"jit(f)/gather/add"))
    is_fused = random.random() < 0.5
    computation, operand = entry, table
    if is_fused:
        computation, operand = module.computations.add(id=1), 10
        shaped(added(computation, 10, "parameter", parameter_number=0), type_, rows, width)
        fusion = added(entry, 3, "fusion", table)
        fusion.called_computation_ids.append(1)
    gather = added(computation, 11, "gather", operand)
    gather.metadata.op_name = path
    shaped(gather, type_, 6, result_width)
    is_argument = table == 1 or entry.instructions[1].opcode == b"convert"
    expected = []
    if path == b"jit(f)/gather" and width == result_width == 8 and type_ == F32 and is_argument:
        expected = [("jit_f", "fusion.3" if is_fused else "gather.11", rows, 8, 6)]
    found = [
        (each.module, each.operation, each.rows, each.width, each.count)
        for each in table_lookups("jit_f", message)
    ]
    assert found == expected


@examples(60)
@given(randoms)
def test_memory_that_a_program_keeps(random: Random) -> None:
    message = HloProto()
    module = message.hlo_module
    module.entry_computation_id = 2
    for number, name in ((1, b"other"), (2, b"state['w']")):
        parameter = added(module.computations.add(id=number), 1, "parameter", parameter_number=0)
        parameter.metadata.op_name = name
    arguments, sums, is_damaged = [], {"result": 0, "temporary": 0, "constant": 0}, False
    for _ in range(random.randrange(6)):
        size = random.choice((0, 5, 7, 2**50 - 1, 2**50)) if random.random() < 0.2 else 9
        kind = random.choice(("argument", "result", "temporary", "constant"))
        color, is_local = random.choice((0, 0, 0, 1)), random.random() < 0.1
        each = message.buffer_assignment.buffer_allocations.add(size=size, color=color)
        each.is_thread_local = int(is_local)
        each.is_argument = int(kind == "argument")
        each.argument_number = number = random.randrange(2)
        each.is_constant = int(kind == "constant")
        each.maybe_live_out = int(kind == "result")
        if color or is_local:
            continue
        is_damaged |= size >= 2**50
        if kind == "argument":
            arguments.append(("state['w']" if number == 0 else "", size))
        else:
            sums[kind] += size
    found = planned_memory("jit_f", message)
    total = sum(sums.values()) + sum(size for _, size in arguments)
    if is_damaged or not total:
        assert found is None
        return
    assert found is not None
    assert (found.arguments, found.total_bytes) == (tuple(arguments), total)
    kept = (found.result_bytes, found.temporary_bytes, found.constant_bytes)
    assert kept == (sums["result"], sums["temporary"], sums["constant"])


@examples(60)
@given(randoms)
def test_arguments_over_devices_and_groups(random: Random) -> None:
    message = HloProto()
    module = message.hlo_module
    entry = module.computations.add(id=1)
    module.entry_computation_id = 1
    replicas, partitions = random.choice((0, 1, 4)), random.choice((0, 1, 2))
    module.device_assignment.replica_count = replicas
    module.device_assignment.computation_count = partitions
    devices = max(replicas, 1) * max(partitions, 1)
    parts = []
    for number in range(random.randint(1, 4)):
        argument = added(entry, 1 + number, "parameter", shape="8,8", parameter_number=number)
        kind = random.choice(("none", "replicated", "tiled", "partial", "last", "manual"))
        if kind == "none":
            parts.append(0)
            continue
        argument.sharding.SetInParent()
        argument.sharding.type = {"replicated": 0, "manual": 4}.get(kind, 3)
        dims = [random.choice((1, 2, 4)) for _ in range(3)]
        argument.sharding.tile_assignment_dimensions.extend(dims)
        if kind == "partial":
            argument.sharding.replicate_on_last_tile_dim = 1
        elif kind == "last":
            argument.sharding.last_tile_dims.append(0)
        tiles = prod(dims[:-1]) if kind in ("partial", "last") else prod(dims)
        parts.append({"replicated": 1, "manual": 0}.get(kind, tiles))
    aliased = random.sample(range(len(parts)), random.randrange(len(parts)))
    for number in aliased:
        module.input_output_alias.entries.add(parameter_number=number)
    form = random.choice(("listed", "iota", "mesh", "none"))
    reduce = added(entry, 50, random.choice(("all-reduce", "reduce-scatter", "add")), 1)
    shaped(reduce, F32, 8, 8)
    size = devices
    if form == "listed":
        reduce.replica_groups.add(replica_ids=[0, 1, 2])
        size = 3
    elif form == "iota":
        reduce.collective_device_list.iota_replica_group_list.num_devices_per_group = size = 6
    elif form == "mesh":
        for axis in (2, 3, 5):
            reduce.mesh_groups.mesh.axes.add(size=axis)
        for number in (0, 2, 3):  # the mesh has no fourth axis
            reduce.mesh_groups.axes.add(mesh_axis_index=number)
        size = 10
    entry.root_id = 50
    found = program_values("jit_f", message)
    assert found is not None
    assert found.devices == devices
    assert found.argument.tolist() == [*range(len(parts)), -1]
    assert found.parts.tolist() == [*parts, 0]
    assert found.is_aliased.tolist() == [
        *(number in aliased for number in range(len(parts))),
        False,
    ]
    assert found.is_result.tolist() == [*[False] * len(parts), True]
    assert [*found.groups.values()] == ([size] if reduce.opcode != b"add" else [])
    edges = list(zip(found.sources.tolist(), found.targets.tolist(), strict=True))
    assert edges == [(0, len(parts))]
