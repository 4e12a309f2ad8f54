"""Files made so that each of their bytes becomes an object are refused before they fill memory."""

from __future__ import annotations

import gzip
import struct
import tracemalloc
from pathlib import Path

import pytest

from tb_perfadvisor.api import describe_runs
from tb_perfadvisor.errors import UnreadableProfileError
from tb_perfadvisor.ingest.discovery import discover
from tb_perfadvisor.ingest.files import budget as budget_module
from tb_perfadvisor.ingest.files.budget import BYTES_PER_BYTE, FREE_BYTES, ITEM_BYTES, Budget
from tb_perfadvisor.ingest.load import load_capture
from tests.support.xspaces import field

SIZE = 100_000
SESSION = "plugins/profile/2026_01_01_00_00_00"
STEP = b'{"ph":"X","cat":"user_annotation","name":"ProfilerStep#1","pid":1,"ts":1,"dur":9}'
PICKLE = b"\x80\x04}(\x8c\rdevice_traces]\x8c\x08segments]"


@pytest.fixture
def little_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fiftieth of the real limit, since files here are that much smaller than large ones."""
    monkeypatch.setattr(budget_module, "FREE_BYTES", FREE_BYTES // 50)


def filled(text: bytes) -> bytes:
    return text * (SIZE // len(text))


def plane(content: bytes) -> bytes:
    return field(1, field(2, b"/host:CPU") + content)


DENSE = {
    "lists of a pickle": ("memory.pickle", PICKLE + filled(b"]a") + b"u."),
    "dictionaries of a pickle": ("memory.pickle", PICKLE + filled(b"}a") + b"u."),
    "tuples of a pickle": ("memory.pickle", PICKLE + filled(b"K\x01\x85a") + b"u."),
    "events of a JSON snapshot": (
        "memory.json",
        b'{"segments":[],"device_traces":[[' + filled(b"{},") + b"{}]]}",
    ),
    "lists in one event": (
        "rank0.pt.trace.json",
        b'{"schemaVersion":1,"traceEvents":[{"ph":"X","cat":"cpu_op","name":"a","pid":['
        + filled(b"[],")
        + b'1],"ts":1,"dur":1},'
        + STEP
        + b"]}",
    ),
    "lists in the header": (
        "rank0.pt.trace.json",
        b'{"schemaVersion":1,"deviceProperties":['
        + filled(b"[],")
        + b'1],"traceEvents":['
        + STEP
        + b"]}",
    ),
    "lists in a table": (
        f"{SESSION}/host.input_pipeline.json",
        b'[{"p":{"a":[' + filled(b"[],") + b"1]}}]",
    ),
    "steps of a table": (f"{SESSION}/host.input_pipeline.pb", filled(b"\x22\x00")),
    "empty events of a line": (
        f"{SESSION}/host.xplane.pb",
        plane(field(3, field(2, b"main") + filled(b"\x22\x00"))),
    ),
    "empty entries of a plane": (
        f"{SESSION}/host.xplane.pb",
        plane(field(3, field(2, b"main") + b"\x22\x02\x18\x01") + filled(b"\x22\x00")),
    ),
}


def read(root: Path) -> None:
    listing = discover(root)
    for capture in listing.captures:
        load_capture(listing, capture)


@pytest.mark.usefixtures("little_is_free")
@pytest.mark.parametrize("name", DENSE)
def test_a_dense_file_is_refused(name: str, tmp_path: Path) -> None:
    path, data = DENSE[name]
    (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / path).write_bytes(data)
    with pytest.raises(UnreadableProfileError, match="values, which no recording does"):
        read(tmp_path)


@pytest.mark.usefixtures("little_is_free")
def test_many_tags_are_refused(tmp_path: Path) -> None:
    def record(first: int) -> bytes:
        tags = range(first, first + 300)
        values = b"".join(field(1, field(1, b"%x" % tag) + b"\x15\0\0\x80?") for tag in tags)
        event = b"\x09" + struct.pack("<d", 1.7e9) + b"\x10\x01" + field(5, values)
        return struct.pack("<QI", len(event), 0) + event + bytes(4)

    records = b"".join(record(300 * number) for number in range(30))
    (tmp_path / "events.out.tfevents.1700000000.host").write_bytes(records)
    with pytest.raises(UnreadableProfileError, match="values, which no recording does"):
        list(describe_runs(tmp_path))


def test_a_small_file_that_inflates_to_lists_takes_little_memory(tmp_path: Path) -> None:
    # 43 kB, which were read as 44 million lists.
    data = gzip.compress(PICKLE + b"]a" * 22_000_000 + b"u.", 9)
    assert len(data) < 50_000
    (tmp_path / "memory.pickle").write_bytes(data)
    tracemalloc.start()
    try:
        with pytest.raises(UnreadableProfileError):
            read(tmp_path)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < FREE_BYTES + BYTES_PER_BYTE * (1 << 24)


def test_what_is_allowed_grows_with_what_was_read() -> None:
    budget = Budget("file", 1_000)
    budget.keep(items=(FREE_BYTES + BYTES_PER_BYTE * 1_000) // ITEM_BYTES)
    with pytest.raises(UnreadableProfileError, match="1000 B hold more than 64"):
        budget.keep(items=1)
    budget.read_bytes += 1_000
    budget.keep(size_bytes=BYTES_PER_BYTE * 1_000 - ITEM_BYTES)
    with pytest.raises(UnreadableProfileError):
        budget.expect(items=1)
