"""Pickles: the same values as C's unpickler, and nothing that could run code."""

from __future__ import annotations

import io
import pickle
import pickletools
import struct
import tracemalloc
from contextlib import suppress
from random import Random
from typing import Any

import pytest

from tb_perfadvisor.errors import UnreadableProfileError
from tb_perfadvisor.ingest.files.budget import Budget
from tb_perfadvisor.ingest.memory_snapshots import pickled
from tb_perfadvisor.ingest.memory_snapshots.collector import SnapshotCollector
from tb_perfadvisor.ingest.memory_snapshots.pickled import read_pickle
from tests.support.memory_snapshots import Snapshot, frames, read

MIB = 1 << 20
STACK = frames(("model.py", 3, "forward"), ("train.py", 9, "main"))


def load(data: bytes) -> Any:
    budget = Budget("memory.pickle", len(data))
    collector = SnapshotCollector("memory.pickle", budget)
    return read_pickle(io.BytesIO(data), "memory.pickle", collector, budget)


def small() -> Snapshot:
    made = Snapshot()
    segment = made.segment(20 * MIB, stack=STACK)
    for number in range(3):
        made.allocate(segment + number * MIB, MIB, STACK).free(segment + number * MIB, MIB)
    return made.allocate(segment, MIB, STACK).holds(segment, segment, MIB, STACK)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize(
    "value",
    [
        {"a": 1, "b": -1, "c": 255, "d": 256, "e": 65_536, "f": -(2**31), "g": 2**40, "h": 2**62},
        {"texts": ["", "é", "x" * 300, "日本"], "none": None, "flags": [True, False], "pi": 3.25},
        {"tuples": [(), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4)], "nested": {"list": [[], [[1]]]}},
        [{"deep": [{"deeper": []}]}, list(range(2_500))],
    ],
    ids=["numbers", "texts", "tuples", "lists"],
)
def test_plain_values_are_those_of_the_standard_library(value: Any, protocol: int) -> None:
    data = pickle.dumps(value, protocol)
    assert load(data) == pickle.loads(data)
    assert load(pickletools.optimize(data)) == pickle.loads(data)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_every_protocol_gives_the_same_snapshot(protocol: int) -> None:
    snapshot, other = read(small().pickled(protocol)).snapshot, read(small().pickled()).snapshot
    assert snapshot is not None
    assert other is not None
    assert snapshot.events.size_bytes.tolist() == other.events.size_bytes.tolist()
    assert snapshot.stacks.frames == other.stacks.frames
    assert snapshot.events.stack.tolist() == other.events.stack.tolist()


class Runs:
    """Would call `print` if it were loaded."""

    def __reduce__(self) -> tuple[Any, ...]:
        return print, ("this must never be printed",)


class Built:
    """Is built by NEWOBJ and BUILD."""

    def __init__(self) -> None:
        self.value = 1


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("hostile", [Runs(), Built(), {1, 2}, frozenset({1}), 1j, bytearray(b"x")])
def test_nothing_but_plain_values_is_made(hostile: Any, protocol: int, capsys: Any) -> None:
    content = {**small().content(), "extra": hostile}
    with pytest.raises(UnreadableProfileError) as caught:
        load(pickle.dumps(content, protocol))
    assert capsys.readouterr().out == ""
    assert "would run code" in caught.value.message or "no snapshot needs" in caught.value.message


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("GLOBAL", b"cos\nsystem\n"),
        ("STACK_GLOBAL", b"\x8c\x02os\x8c\x06system\x93"),
        ("INST", b"(ios\nsystem\n"),
        ("OBJ", b"(cos\nsystem\no"),
        ("REDUCE", b"\x8c\x01x)R"),
        ("BUILD", b"}}b"),
        ("NEWOBJ", b"\x8c\x01x)\x81"),
        ("NEWOBJ_EX", b"\x8c\x01x)}\x92"),
        ("EXT1", b"\x82\x01"),
        ("EXT2", b"\x83\x01\x00"),
        ("EXT4", b"\x84\x01\x00\x00\x00"),
        ("PERSID", b"Pname\n"),
        ("BINPERSID", b"\x8c\x01xQ"),
        ("BYTEARRAY8", b"\x96\x01\x00\x00\x00\x00\x00\x00\x00x"),
        ("NEXT_BUFFER", b"\x97"),
        ("READONLY_BUFFER", b"\x97\x98"),
    ],
)
def test_each_instruction_that_makes_more_is_refused_by_name(name: str, code: bytes) -> None:
    with pytest.raises(UnreadableProfileError, match="would run code") as caught:
        load(b"\x80\x04" + code + b".")
    if name not in ("OBJ", "READONLY_BUFFER"):  # what precedes these is refused first
        assert f"({name})" in caught.value.message


GIGABYTE = struct.pack("<Q", 1 << 30)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x80\x04",
        b"\x80\x04.",
        b"\x80\x04]]." * 2,
        b"\x80\x04X\xff\xff\xff\xff",
        b"\x80\x04\x8d" + GIGABYTE,
        b"\x80\x04\x8e" + GIGABYTE,
        b"\x80\x04\x8b\xff\xff\xff\x7f",
        b"\x80\x04\x8a\xff" + bytes(255) + b".",
        b"\x80\x04h\xff.",
        b"\x80\x04j\xff\xff\xff\x7f.",
        b"\x80\x04]r\xff\xff\xff\x7f.",
        b"\x80\x04]q\x05.",
        b"\x80\x04e.",
        b"\x80\x04(e.",
        b"\x80\x04u.",
        b"\x80\x04}(K\x01u.",
        b"\x80\x04](K\x01K\x02u.",
        b"\x80\x04K\x01a.",
        b"\x80\x04\x87.",
        b"\x80\x04t.",
        b"\x80\x04\x94.",
        b"\x80\x04}]K\x01s.",
        b"\x80\x04]\x94(h\x00e",
        b"\x80\x04" + b"(" * 100_000,
        b"\x80\x04" + b"]" * 300_000,
        b"\x80\x04" + b"]" * 200_000 + b"a" * 199_999 + b".",
        # A tuple in a tuple in a tuple: hashing it would overflow Python's own stack.
        b"\x80\x04}" + b")" + b"\x85" * 100_000 + b"K\x01s.",
        b"\x80\x04" + b"N" * 300_000,
        b"\x80\x04}(" + b"".join(b"J" + struct.pack("<i", i) + b"N" for i in range(2_000)) + b"u.",
    ],
    ids=lambda data: f"{bytes(data[:12])!r} {len(data)}",
)
def test_damage_is_an_error_and_takes_no_memory(data: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(UnreadableProfileError) as caught:
            load(data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert caught.value.hint
    assert peak < 8 * MIB


def test_values_are_nested_sixty_four_levels_deep_at_most() -> None:
    def nested(levels: int) -> bytes:
        return b"\x80\x04" + b"](" * levels + b"N" + b"e" * levels + b"."

    assert load(nested(64)) == pickle.loads(nested(64))
    with pytest.raises(UnreadableProfileError, match="more than a memory snapshot"):
        load(nested(65))


def test_a_bomb_of_references_stays_one_list() -> None:
    # Each list holds the one before it twice; written out, the last would have 2^60 elements.
    levels = b"".join(b"]\x94(h" + bytes([n]) + b"h" + bytes([n]) + b"e" for n in range(60))
    value = load(b"\x80\x04](]\x94" + levels + b"e.")
    assert len(value) == 61
    assert value[60][0] is value[60][1]


def test_more_references_than_any_snapshot_has_are_refused(monkeypatch: Any) -> None:
    monkeypatch.setattr(pickled, "_MAX_HELD", 1_000)
    assert load(b"\x80\x04]" + b"\x94" * 1_000 + b".") == []
    with pytest.raises(UnreadableProfileError, match="more than a memory snapshot"):
        load(b"\x80\x04]" + b"\x94" * 100_000 + b".")


@pytest.mark.parametrize("place", range(0, 100, 7))
def test_a_truncated_file_is_an_error(place: int) -> None:
    data = small().pickled()
    with pytest.raises(UnreadableProfileError):
        read(data[: len(data) * place // 100])


def test_a_file_that_ends_in_a_number_is_an_error() -> None:
    with pytest.raises(UnreadableProfileError):
        load(b"\x80\x04G\x3f")  # BINFLOAT has eight bytes


def test_changed_bytes_give_a_snapshot_or_an_error() -> None:
    random, data, read_whole = Random(7), small().pickled(), 0
    for _ in range(2_000):
        changed = bytearray(data)
        for _ in range(random.randint(1, 4)):
            changed[random.randrange(2, len(changed))] = random.randrange(256)
        with suppress(UnreadableProfileError):
            read(bytes(changed))
            read_whole += 1
    assert 0 < read_whole < 2_000


def test_texts_of_a_megabyte_and_more_are_refused() -> None:
    content = {"name": "x" * (MIB + 1)}
    with pytest.raises(UnreadableProfileError, match="more than a megabyte"):
        load(pickle.dumps(content))


def test_a_file_longer_than_the_buffer_is_read_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pickled, "_READ_BYTES", 1 << 16)
    made = Snapshot()
    segment = made.segment(20 * MIB)
    for number in range(2_000):
        made.allocate(segment, 512 + number, STACK).free(segment, 512 + number, STACK)
    data = made.pickled()
    assert len(data) > 2 << 16
    snapshot = read(data).snapshot
    assert snapshot is not None
    # A segment, and three entries for each of the 2,000.
    assert len(snapshot.events) == 6_001
    assert int(snapshot.events.size_bytes[-1]) == 512 + 1_999
    assert len(snapshot.stacks) == 1
