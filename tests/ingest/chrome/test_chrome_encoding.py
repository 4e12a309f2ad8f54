"""Messages encoded as columns, decoded by protobuf itself and by the xplane reader's decoder."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tb_perfadvisor.ingest.chrome.reader import (
    concatenate,
    double_field,
    message_field,
    one_message_field,
    varint_field,
)
from tb_perfadvisor.ingest.xspace.decode.messages import WRITING

INT64 = st.integers(-(2**63), 2**63 - 1)
# Numbers of every varint length, which a uniform distribution would hardly contain.
LENGTHS = st.integers(0, 63).flatmap(lambda bits: st.integers(2**bits // 2, 2**bits - 1))


@given(st.lists(st.tuples(INT64 | LENGTHS, INT64 | LENGTHS, st.floats(), st.booleans())))
def test_protobuf_reads_the_encoded_message(rows: list[tuple[int, int, float, bool]]) -> None:
    ids, offsets, doubles = (np.array([row[i] for row in rows]) for i in range(3))
    has_stat = np.array([row[3] for row in rows], dtype=np.bool_)
    stat = concatenate(
        varint_field(1, np.full(len(rows), 300)), double_field(2, doubles.astype(np.float64))
    )
    events = concatenate(
        varint_field(1, ids.astype(np.int64)),
        varint_field(2, offsets.astype(np.int64)),
        message_field(4, stat).where(has_stat),
    )
    line = WRITING.XLine.FromString(bytes(message_field(4, events)))
    expected = WRITING.XLine()
    for id_, offset, value, has_one in rows:
        event = expected.events.add(metadata_id=id_, offset_ps=offset)
        if has_one:
            event.stats.add(metadata_id=300, double_value=value)
    assert line.SerializeToString(deterministic=True) == expected.SerializeToString(
        deterministic=True
    )


def test_numbers_take_the_fewest_bytes() -> None:
    # The example in protobuf's documentation: 150 in field 1 is 08 96 01.
    assert bytes(varint_field(1, np.array([150]))) == b"\x08\x96\x01"
    assert bytes(varint_field(1, np.array([0, 127, 128]))) == b"\x08\x00\x08\x7f\x08\x80\x01"
    assert bytes(varint_field(2, np.array([-1]))) == b"\x10" + b"\xff" * 9 + b"\x01"


def test_one_message() -> None:
    # Also from the documentation: the string "testing" in field 2 is 12 07 74 65 ...
    assert one_message_field(2, b"testing") == b"\x12\x07testing"
    assert one_message_field(1, bytes(300))[:3] == b"\x0a\xac\x02"
    assert bytes(varint_field(1, np.empty(0, dtype=np.int64))) == b""
