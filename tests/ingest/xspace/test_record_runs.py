from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tb_perfadvisor.ingest.xspace.decode import wire
from tests.support.xspaces import field

TAG = 0x22  # of field 4, delimited


def record(payload: bytes) -> bytes:
    return field(4, payload)


def found(data: bytes, at: int = 0) -> tuple[list[bytes], int]:
    run = wire.find_records(wire.buffer_of(data), at, len(data), TAG)
    spans = zip(run.begin.tolist(), run.end.tolist(), strict=True)
    return [data[begin:end] for begin, end in spans], run.after


@pytest.fixture(params=["alone", "side by side"], autouse=True)
def _walk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways to walk; the parallel one with chunks shorter than many records."""
    if request.param == "side by side":
        monkeypatch.setattr(wire, "_STRETCH", 16)
        monkeypatch.setattr(wire, "_RUN_UP", 8)
        monkeypatch.setattr(wire, "_MAX_TAG_DISTANCE", 4)
        monkeypatch.setattr(wire, "_MIN_PARALLEL_BYTES", 1)


def test_run_of_records_ends_at_another_field() -> None:
    data = record(b"ab") + record(b"") + b"\x50\x07" + record(b"c")
    # 22 02 61 62 22 00, then field 10 at 6.
    assert found(data) == ([b"ab", b""], 6)
    assert found(data, at=8) == ([b"c"], len(data))
    assert found(data, at=6) == ([], 6)


def test_truncated_record_is_not_part_of_a_run() -> None:
    whole = record(b"ab") * 30
    for cut in range(1, 4):
        assert found(whole[:-cut]) == ([b"ab"] * 29, 4 * 29)


def test_record_longer_than_many_chunks() -> None:
    payloads = [b"ab"] * 9 + [bytes([TAG, 2]) * 200] + [b"cd"] * 9
    data = b"".join(map(record, payloads))
    assert found(data) == (payloads, len(data))


def test_length_without_end_stops_the_run() -> None:
    data = record(b"ab") * 20 + bytes([TAG]) + b"\xff" * 40
    assert found(data) == ([b"ab"] * 20, 80)


def test_length_beyond_the_file_stops_the_run() -> None:
    # 2^60 as a varint: eight continued bytes of zeros, then 2^(60 - 56).
    data = record(b"ab") * 20 + bytes([TAG]) + b"\x80" * 8 + b"\x10" + bytes(30)
    assert found(data) == ([b"ab"] * 20, 80)


# Payloads that look like records; a long one covers many chunks.
payloads = st.lists(
    st.one_of(
        st.binary(max_size=12),
        st.lists(st.sampled_from([TAG, 0, 1, 2, 3, 0x80, 0xFF]), max_size=24).map(bytes),
        st.integers(100, 300).map(lambda n: random.Random(n).randbytes(n)),
    ),
    max_size=60,
)


@given(payloads, st.binary(max_size=20), st.integers(0, 5))
def test_parallel_walk_matches_a_sequential_one(
    payloads: list[bytes], rest: bytes, before: int
) -> None:
    data = bytes(before) + b"".join(map(record, payloads)) + rest
    wanted, at = [], before
    while at < len(data) and data[at] == TAG:
        length, begin = wire.varint(data, at + 1)
        if begin < 0 or begin + length > len(data):
            break
        wanted.append(data[begin : begin + length])
        at = begin + length
    assert wanted[: len(payloads)] == payloads
    assert found(data, at=before) == (wanted, at)
