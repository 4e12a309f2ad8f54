"""Stats are found whatever their ids are, and similar ones are distinguished."""

from __future__ import annotations

import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tb_perfadvisor.ingest.xspace.reader import read_xplane
from tests.support.xspaces import SOURCE, Drawing, field


@pytest.mark.parametrize("id_", [1, 127, 128, 2**14 - 1, 2**14, 2**21 - 1, 2**21, 2**40])
@pytest.mark.parametrize("others", [1, 2**13, 2**20, 2**30])
def test_ids_may_have_any_size(id_: int, others: int) -> None:
    # Keys of one to six bytes; the stats with the other id are not used.
    drawing = Drawing()
    plane = drawing.plane("/host:CPU")
    for number, name in ((others + 7, "iter_num"), (id_, "step_num")):
        plane.stat_metadata[number].id = number
        plane.stat_metadata[number].name = name
    line = drawing.line(plane, "python")
    plane.event_metadata[1].id = 1
    plane.event_metadata[1].name = "train"
    event = line.events.add(metadata_id=1, duration_ps=10**6)
    event.stats.add(metadata_id=others + 7, int64_value=99)
    event.stats.add(metadata_id=id_, int64_value=5)
    trace = drawing.read()
    assert trace.events.step.tolist() == [5]


def test_id_that_starts_with_the_bytes_of_another() -> None:
    # 5 + 2^21 is 05 with three more bytes: it must not match as a shorter key.
    drawing = Drawing()
    plane = drawing.plane("/host:CPU")
    plane.stat_metadata[5].id = 5
    plane.stat_metadata[5].name = "step_num"
    line = drawing.line(plane, "python")
    event = line.events.add(metadata_id=1, duration_ps=10**6)
    event.stats.add(metadata_id=5 + 2**21, int64_value=3)
    assert drawing.read().events.step.tolist() == [-1]


def test_many_ids_of_one_name() -> None:
    drawing = Drawing()
    plane = drawing.plane("/host:CPU")
    line = drawing.line(plane, "python")
    plane.event_metadata[1].id = 1
    plane.event_metadata[1].name = "train"
    for id_ in range(1, 1_001):
        plane.stat_metadata[id_].id = id_
        plane.stat_metadata[id_].name = "step_num" if id_ % 2 else "group_id"
        event = line.events.add(metadata_id=1, offset_ps=id_ * 10**7, duration_ps=10**6)
        event.stats.add(metadata_id=id_, int64_value=id_)
    steps = drawing.read().events.step.tolist()
    assert steps == [id_ if id_ % 2 else -1 for id_ in range(1, 1_001)]


# Texts of equal length, with equal beginnings, with zero bytes, and of about eight bytes.
texts = st.lists(
    st.one_of(
        st.text("ab\0", max_size=18),
        st.sampled_from(
            [
                "",
                "a" * 7,
                "a" * 8,
                "a" * 9,
                "a" * 16,
                "a" * 15 + "b",
                "a" * 256,
                "a" * 257,
                "b" * 257,
            ]
        ),
    ),
    max_size=30,
)


@given(texts)
def test_repeated_texts_are_equal(texts: list[str]) -> None:
    drawing = Drawing()
    plane = drawing.plane("/host:CPU")
    line = drawing.line(plane, "executor")
    for number, text in enumerate(texts):
        # A shape's type may be any word: the text comes back as the type that was read.
        shape = f"({text.encode().hex()}x[8])"
        drawing.event(plane, line, "MatMul:MatMul", 10 * number, 5, shape=shape)
    trace = drawing.read()
    found = [trace.text(int(index)) for index in trace.operators.dtypes]
    assert found == [f"{text.encode().hex()}x" for text in texts]
    assert all(
        json.loads(trace.text(int(index))) == [[8]] for index in trace.operators.shapes.tolist()
    )


@pytest.mark.parametrize(
    ("stat", "step"),
    [
        # 08 01 is the key, 20 (field 4, a varint) the value.
        (b"\x08\x01\x20\x09", 9),
        (b"\x20\x09\x08\x01", 9),
        # Two values, as in concatenated messages: the last one counts.
        (b"\x08\x01\x20\x03\x20\x09", 9),
        # Field 15 may exist in a future version.
        (b"\x08\x01\x78\x05\x20\x09", 9),
        (b"\x08\x01\x20\x09\x78\x05", 9),
        # No value, no key, or a value with the wrong wire type.
        (b"\x08\x01", -1),
        (b"\x20\x09", -1),
        (b"\x08\x01\x22\x01\x09", -1),
        (b"", -1),
        # A text is not a number.
        (b"\x08\x01\x2a\x01\x39", -1),
    ],
)
def test_stats_of_any_form(stat: bytes, step: int) -> None:
    drawing = Drawing()
    plane = drawing.plane("/host:CPU")
    plane.stat_metadata[1].id = 1
    plane.stat_metadata[1].name = "step_num"
    # An event of kind 1 that takes a nanosecond.
    event = b"\x08\x01\x18\xe8\x07" + field(4, stat)
    line = field(2, b"python") + field(4, event)
    data = field(1, field(2, b"/host:CPU") + field(3, line) + plane.SerializeToString())
    trace = read_xplane(io.BytesIO(data), SOURCE)
    assert trace.events.step.tolist() == [step]
    assert trace.events.duration_ns.tolist() == [1]
