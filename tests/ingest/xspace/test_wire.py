from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tb_perfadvisor.ingest.xspace.decode import wire
from tb_perfadvisor.ingest.xspace.decode.messages import WRITING


def test_varints_of_one_two_and_ten_bytes() -> None:
    # 5; 300 = 0b10_0101100 -> ac 02 (the example of protobuf's documentation); -1 as int64.
    spans = wire.join([b"\x05", b"\xac\x02", b"\xff" * 9 + b"\x01"])
    values, after = wire.varints(spans.buffer, spans.begin)
    assert values.tolist() == [5, 300, 2**64 - 1]
    assert after.tolist() == [1, 3, 13]


def test_a_varint_without_an_end_points_beyond_the_buffer() -> None:
    spans = wire.join([b"\xff" * 12])
    _, after = wire.varints(spans.buffer, spans.begin)
    assert after[0] > spans.buffer.size


@given(st.lists(st.integers(0, 2**35), min_size=1, max_size=20), st.integers(1, 35))
def test_lengths_are_varints(values: list[int], bits: int) -> None:
    # One byte, two bytes, and more, which take a different path.
    encoded = [WRITING.XStat(metadata_id=value % 2**bits).SerializeToString() for value in values]
    spans = wire.join([varint[1:] or b"\x00" for varint in encoded])
    length, after = wire.lengths(spans.buffer, spans.begin)
    assert after.tolist() == spans.end.tolist()
    size = spans.buffer.size
    assert [min(value, size) for value in length.tolist()] == [
        min(v % 2**bits, size) for v in values
    ]


def test_a_length_without_an_end_points_beyond_the_buffer() -> None:
    spans = wire.join([b"\xff" * 12])
    assert wire.lengths(spans.buffer, spans.begin)[1][0] > spans.buffer.size


def test_walk_gives_one_field_of_every_message_at_a_time() -> None:
    # 08 07: field 1 = 7. 12 02 'hi': field 2 of two bytes. 19 + 8 bytes: field 3, fixed.
    spans = wire.join([b"\x08\x07\x12\x02hi", b"", b"\x19\x01\0\0\0\0\0\0\0"])
    first, second = wire.walk(spans)
    assert first.row.tolist() == [0, 2]
    assert first.number.tolist() == [1, 3]
    assert first.value.tolist() == [7, 1]
    assert second.row.tolist() == [0]
    assert (second.begin[0], second.value[0]) == (4, 2)


def test_a_field_longer_than_its_message_ends_the_message() -> None:
    spans = wire.join([b"\x08\x07\x12\x7fhi", b"\x08\x09"])
    steps = list(wire.walk(spans))
    assert [step.row.tolist() for step in steps] == [[0, 1]]


def test_large_field_number_differs_from_a_small_one() -> None:
    # Field 17 (tag 17 << 3 = 136 = 88 01) must not look like field 1 (17 & 15).
    spans = wire.join([b"\x88\x01\x05"])
    (step,) = wire.walk(spans)
    assert step.number.tolist() == [255]


numbers = st.integers(-(2**63), 2**63 - 1)


@given(st.lists(st.tuples(numbers, numbers, numbers), min_size=1, max_size=20))
def test_agrees_with_protobuf(rows: list[tuple[int, int, int]]) -> None:
    messages = [
        WRITING.XEvent(metadata_id=a, offset_ps=b, duration_ps=c).SerializeToString()
        for a, b, c in rows
    ]
    found = np.zeros((len(rows), 3), dtype=np.int64)
    for step in wire.walk(wire.join(messages)):
        found[step.row, step.number.astype(np.int64) - 1] = step.value.view(np.int64)
    assert found.tolist() == [list(row) for row in rows]
