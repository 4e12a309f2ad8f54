"""Collectives, copies and links of Kineto files, written at random and read back."""

from __future__ import annotations

from math import prod
from random import Random
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tb_perfadvisor.ingest.kineto.interpret.collectives import item_bytes, shaped_bytes
from tb_perfadvisor.ingest.kineto.interpret.event_kinds import (
    ROUNDING_NS,
    clamp_overhangs,
    forward_links,
    parse_copy_name,
)
from tb_perfadvisor.trace import CopyDirection
from tests.support.kineto_files import event, kernel, read, to_bytes
from tests.support.night import examples

randoms = st.integers(0, 2**32).map(Random)

# Types of c10/core/ScalarType.h and of C++, by their bytes.
TYPES = {
    1: ("Byte", "Char", "Bool", "unsigned char", "signed char", "Int8", "UInt8", "Float8_e4m3fn",
        "Float8_e5m2", "Float8_e4m3fnuz", "Float8_e5m2fnuz", "c10::Float8_e4m3fn",
        "c10::Float8_e5m2"),
    2: ("Short", "short int", "Half", "BFloat16", "c10::Half", "c10::BFloat16"),
    4: ("Int", "Float"),
    8: ("Long", "long int", "Double", "ComplexFloat", "c10::complex<float>"),
    16: ("ComplexDouble", "c10::complex<double>"),
    -1: ("Generator", "", "QInt8"),
}  # fmt: skip
WIDTH = {name: width for width, names in TYPES.items() for name in names}


def test_bytes_of_types() -> None:
    for name, width in WIDTH.items():
        assert (item_bytes(name), item_bytes(f" {name.upper()} ")) == (width, width)


@examples(60)
@given(randoms)
def test_bytes_of_tensors(random: Random) -> None:
    shapes = [
        [random.choice((0, 1, 3, 2**20, -1)) for _ in range(random.randrange(4))]
        for _ in range(random.randrange(3))
    ]
    names = [random.choice(("Float", "c10::Half", "Long", "ComplexDouble")) for _ in shapes]
    if random.random() < 0.2:
        names.append(random.choice(("Float", "Generator")))
    expected = sum(
        prod(max(extent, 0) for extent in shape) * WIDTH[name]
        for shape, name in zip(shapes, names, strict=False)
    )
    if len(names) != len(shapes) or not names or expected >= 2**62:
        expected = -1
    assert shaped_bytes(str(shapes), ";".join(names)) == expected


ELEMENTS: list[tuple[Any, int]] = [(0, 0), (5, 5), (2**48 - 1, 2**48 - 1), (2**48, -1), (-1, -1)]


@examples(60)
@given(randoms)
def test_what_collectives_state(random: Random) -> None:
    only_size = random.choice((None, 8))
    groups = [{"pg_name": "7", "pg_desc": "dp", "ranks": [0, 2], "pg_size": only_size or 0}]
    groups += [] if only_size else [{"pg_name": "8"}]
    events, expected = [], []
    for number in range(random.randint(1, 5)):
        arguments: dict[str, Any] = {}
        sizes = []
        dtype = random.choice(("Float", "BFloat16", "Generator"))
        is_described = random.random() < 0.8
        for name in ("In msg nelems", "Out msg nelems"):
            text, count = random.choice(ELEMENTS)
            arguments[name] = text
            sizes.append(count * WIDTH[dtype] if count >= 0 and WIDTH[dtype] > 0 else -1)
        group = random.choice(("7", "9"))
        group_size = random.choice((-1, 1, 4))
        sequence = random.randrange(3)
        arguments |= {
            "Collective name": "_allgather_base", "dtype": dtype, "Process Group Name": group,
            "Group size": group_size, "Seq": sequence,
        }  # fmt: skip
        is_own = random.random() < 0.5
        kernel_name = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(x)"
        # The kernel has the arguments, or the call that it shares an id with.
        own = {"External id": number + 1} | (arguments if is_described and is_own else {})
        events.append(kernel(kernel_name, 100 * number + 10, 5, **own))
        if is_described and not is_own:
            call = {"args": {"External id": number + 1, **arguments}}
            events.append(event("record_param_comms", 100 * number, 5, **call))
        named = group if is_described else ""
        expected.append(
            {
                "operation": "all-gather" if is_described else "all-reduce",
                "size": max(sizes) if is_described else -1,
                "sent": sizes[0] if is_described else -1,
                "dtype": dtype if is_described else "BFloat16",
                "group_size": group_size if is_described else only_size or -1,
                "sequence": sequence if is_described else -1,
                "group": named,
                "description": "dp" if named == "7" else "",
                "ranks": "[0, 2]" if named == "7" else "",
            }
        )
    trace = read(to_bytes(events, distributedInfo={"pg_config": groups}))
    table = trace.collectives
    found = [
        dict(zip(expected[0], row, strict=True))
        for row in zip(
            trace.texts(table.operation), table.size_bytes.tolist(), table.sent_bytes.tolist(),
            trace.texts(table.dtype), table.group_size.tolist(), table.sequence.tolist(),
            trace.texts(table.group), trace.texts(table.description), trace.texts(table.ranks),
            strict=True,
        )
    ]  # fmt: skip
    assert found == expected


@examples(60)
@given(randoms)
def test_calls_that_launch_collectives(random: Random) -> None:
    operation, name = random.choice(
        (
            ("all-to-all", "all_to_all"),
            ("all-gather", "_all_gather_base"),
            ("broadcast", "broadcast"),
        )
    )
    levels = random.randint(0, 4)
    events: list[dict[str, Any]] = []
    shape = {"Input Dims": [[6, 2]], "Input type": ["float"]} if random.random() < 0.7 else {}
    events.append(event(f"nccl:{name}", 0, 100, "user_annotation", args=shape))
    events += [event(f"c10d::op{level}", 1 + level, 90 - 2 * level) for level in range(levels)]
    launch = event("cudaLaunchKernelExC", 20, 5, "cuda_runtime", args={"correlation": 7})
    events.append(launch)
    size = random.choice((None, 4))
    info = {"pg_config": [{"pg_name": "0", "pg_size": size}]} if size else {}
    kernel_name = "ncclDevKernel_SendRecv(x)"
    events.append(kernel(kernel_name, 200, 5, correlation=7))
    trace = read(to_bytes(events, distributedInfo=info))
    table = trace.collectives
    (found,) = trace.texts(table.operation)
    # Looked for in the call, and in the two ranges around it.
    is_seen = levels <= 1
    assert (found == operation) == is_seen
    sent = 6 * 2 * 4 if is_seen and shape else -1
    whole = sent * (size or -1) if operation == "all-gather" and sent > 0 else sent
    assert table.sent_bytes.tolist() == [sent]
    assert table.size_bytes.tolist() == [whole if whole > 0 else -1]


@examples(40)
@given(randoms)
def test_names_of_copies(random: Random) -> None:
    ends = {
        "H": ("Pageable", "Pinned", "Host"),
        "D": ("Device",),
        "P": ("Device",),
        "A": ("Array",),
    }
    source, target = random.choice("HDPA"), random.choice("HDPA")
    memories = random.choice(ends[source]), random.choice(ends[target])
    is_stated = random.random() < 0.7
    stated = f" ({memories[0]} -> {memories[1]})" if is_stated else ""
    found = parse_copy_name(f"Memcpy {source}to{target}{stated}")
    # Arrays are in the device's memory.
    sides = (source + target).replace("A", "D")
    by_sides = {
        "HD": CopyDirection.HOST_TO_DEVICE, "DH": CopyDirection.DEVICE_TO_HOST,
        "DD": CopyDirection.DEVICE_TO_DEVICE, "HH": CopyDirection.HOST_TO_HOST,
        "PP": CopyDirection.PEER_TO_PEER,
    }  # fmt: skip
    assert found.direction == by_sides.get(sides, CopyDirection.UNKNOWN)
    pageable = 1 if "Pageable" in memories else 0 if "Pinned" in memories else -1
    assert found.pageable == (pageable if is_stated else -1)


@examples(80)
@given(randoms)
def test_ends_that_rounding_has_moved_past_the_caller(random: Random) -> None:
    # One event in another one on the same thread, which it outlasts by about the rounding.
    length = random.choice((1_000, 3_000, 5_000))
    begin = random.choice((0, 1_000, length - 1, length))
    over = random.choice((-500, 0, 1, 999, 1_000, 1_001, 2_000))
    duration = max(length - begin + over, 0)
    track = [0, random.choice((0, 0, 1))]
    is_host = [True, random.random() < 0.9]
    found = clamp_overhangs(
        np.array([0, begin]), np.array([length, duration]), np.array(track, dtype=np.int32),
        np.array(is_host),
    ).tolist()  # fmt: skip
    is_inside = begin < length and track == [0, 0] and all(is_host)
    is_rounded = 0 < begin + duration - length <= ROUNDING_NS
    is_mostly_inside = length - begin > begin + duration - length
    if begin == 0 and duration > length:  # the longer one holds the other one
        expected = [length, duration]
    elif is_inside and is_rounded and is_mostly_inside:
        expected = [length, length - begin]
    else:
        expected = [length, duration]
    assert found == expected


@examples(80)
@given(randoms)
def test_forward_operators_of_backward_nodes(random: Random) -> None:
    rows = []
    for at in range(random.randint(0, 12)):
        is_backward = random.random() < 0.5
        sequence = random.choice((-1, 0, 0, 1, 2))
        rows.append((at, sequence, 1 if is_backward else 0, 5 if is_backward else 4))
    columns = [np.array([row[place] for row in rows], dtype=np.int64) for place in range(4)]
    start, sequence, forward_thread, thread = columns
    found = forward_links(
        np.arange(len(rows)), sequence, forward_thread, thread.astype(np.int32), start
    )
    expected = {}
    for at, number, is_backward, _ in rows:
        forward = [
            other
            for other, of_other, other_is_backward, _ in rows
            if other < at and of_other == number and not other_is_backward
        ]
        if number >= 0 and is_backward and forward:
            expected[at] = forward[-1]
    assert dict(zip(found[0].tolist(), found[1].tolist(), strict=True)) == expected
