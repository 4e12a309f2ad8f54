"""Files of each format that are made to fill the memory, and what readers count of them."""

from __future__ import annotations

import sqlite3
import struct
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from unittest.mock import patch

from msgspec import Struct

from tb_perfadvisor.api.training import describe_runs
from tb_perfadvisor.errors import PerfAdvisorError
from tb_perfadvisor.ingest.discovery import discover
from tb_perfadvisor.ingest.files import budget as budget_module
from tb_perfadvisor.ingest.files.budget import BYTES_PER_BYTE, FREE_BYTES, ITEM_BYTES, Budget
from tb_perfadvisor.ingest.formats import FORMATS
from tb_perfadvisor.ingest.load import load_capture
from tests.support.xspaces import field

EVENT_FILES = "event-files"
"""They are no format of the registry, because they become no trace."""
_SESSION = "plugins/profile/2026_01_01_00_00_00"
_STEP = b'{"ph":"X","cat":"user_annotation","name":"ProfilerStep#1","pid":1,"ts":1,"dur":9}'
_HOST = b'{"ph":"M","name":"process_name","pid":1,"args":{"name":"/host:CPU"}},'
_PICKLE = b"\x80\x04}(\x8c\rdevice_traces]\x8c\x08segments]"
_RECORD = b"V0101 00:00:00.000000 1 torch/_dynamo/a.py:1] "
_MEASURED_BYTES = 200_000
_SHRUNK = 50
"""Tests have a fiftieth of the free bytes, so that their files are that much smaller, too."""


class Bomb(Struct, frozen=True):
    """A file of about any size."""

    format: str
    what: str
    """What fills it, for people."""
    path: str
    make: Callable[[int], bytes]

    def write(self, root: Path, size_bytes: int) -> None:
        """Write it below a log directory."""
        path = root / self.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(self.make(size_bytes))


def label_of(format: str) -> str:
    """What documents call a format."""
    labels = {each.name: each.label for each in FORMATS}
    return labels.get(format, "event file")


def counted_per_byte(bomb: Bomb) -> float:
    """How many bytes its reader counts for each byte of it."""
    counted: dict[int, float] = {}
    budgets: list[Budget] = []

    def note(budget: Budget, items: int = 0) -> None:
        budgets.append(budget)  # so that no other gets its id
        kept_bytes = budget.kept_bytes + ITEM_BYTES * items
        counted[id(budget)] = max(counted.get(id(budget), 0), kept_bytes / budget.read_bytes)

    with (
        tempfile.TemporaryDirectory() as folder,
        patch.object(budget_module, "FREE_BYTES", 1 << 16),
        patch.object(Budget, "expect", note),
    ):
        bomb.write(Path(folder), _MEASURED_BYTES)
        with suppress(PerfAdvisorError):  # they are no whole recordings
            read(Path(folder))
    return max(counted.values())


def refused_from_bytes(bomb: Bomb) -> float:
    """The size from which it is refused."""
    return FREE_BYTES / (counted_per_byte(bomb) - BYTES_PER_BYTE)


@contextmanager
def little_is_free() -> Iterator[float]:
    """Let readers keep less; gives the part of the size from which files are refused then."""
    with patch.object(budget_module, "FREE_BYTES", FREE_BYTES // _SHRUNK):
        yield 1 / _SHRUNK


def read(root: Path) -> None:
    """Read all that is below a log directory.

    Raises:
        PerfAdvisorError: If some of it cannot be read.
    """
    listing = discover(root)
    for capture in listing.captures:
        load_capture(listing, capture)
    if listing.event_files:
        list(describe_runs(root))


def _filled(
    before: bytes, unit: bytes | Callable[[int], bytes], after: bytes
) -> Callable[[int], bytes]:
    def make(size_bytes: int) -> bytes:
        if isinstance(unit, bytes):
            return before + unit * (size_bytes // len(unit)) + after
        count = size_bytes // len(unit(0))
        return before + b"".join(map(unit, range(count))) + after

    return make


def _in_plane(make: Callable[[int], bytes], name: bytes = b"/host:CPU") -> Callable[[int], bytes]:
    return lambda size_bytes: field(1, field(2, name) + make(size_bytes))


def _line(size_bytes: int) -> bytes:
    return field(3, _filled(field(2, b"main"), b"\x22\x00", b"")(size_bytes))


def _program(size_bytes: int) -> bytes:
    """A program of empty instructions that an event of the host names."""
    program = field(1, field(3, b"\x12\x00" * (size_bytes // 2)))
    kind = field(2, b"\x08\x01" + field(2, b"jit_f") + field(5, b"\x08\x01" + field(6, program)))
    names = b"".join(
        field(5, b"\x08%c" % id_ + field(2, b"\x08%c" % id_ + field(2, name)))
        for id_, name in enumerate((b"Hlo Proto", b"hlo_op", b"hlo_module"), 1)
    )
    stats = field(4, b"\x08\x02" + field(5, b"a")) + field(4, b"\x08\x03" + field(5, b"jit_f"))
    event = field(4, b"\x08\x01\x10\x01\x18\x01" + stats)
    line = field(3, field(2, b"tf_XLAEigen/1") + event)
    return field(1, field(2, b"/host:metadata") + field(4, b"\x08\x01" + kind) + names) + field(
        1, field(2, b"/host:CPU") + line + names
    )


def _tags(number: int) -> bytes:
    """A record of an event file with 100 values, each of a tag of its own."""
    tags = range(100 * number, 100 * number + 100)
    values = b"".join(field(1, field(1, b"%06x" % tag) + b"\x15\0\0\x80?") for tag in tags)
    event = b"\x09" + struct.pack("<d", 1.7e9) + b"\x10\x01" + field(5, values)
    return struct.pack("<QI", len(event), 0) + event + bytes(4)


def _export(size_bytes: int) -> bytes:
    """Texts that are stored once, as the default of a column, and read for each row."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "export.sqlite")
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("CREATE TABLE StringIds (id INTEGER)")
            connection.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INT, end INT)")
            rows = ((row,) for row in range(size_bytes // 9))
            connection.executemany("INSERT INTO StringIds VALUES (?)", rows)
            text = "x" * 1_000
            connection.execute(f"ALTER TABLE StringIds ADD COLUMN value TEXT DEFAULT '{text}'")
        return path.read_bytes()


BOMBS = (
    Bomb("xplane", "empty events", f"{_SESSION}/host.xplane.pb", _in_plane(_line)),
    Bomb(
        "xplane",
        "empty kinds of events",
        f"{_SESSION}/host.xplane.pb",
        _in_plane(_filled(b"", b"\x22\x00", b"")),
    ),
    Bomb("xplane", "a program of empty instructions", f"{_SESSION}/host.xplane.pb", _program),
    Bomb(
        "chrome",
        "empty lists in one event",
        f"{_SESSION}/host.trace.json",
        _filled(
            b'{"displayTimeUnit":"ns","traceEvents":[' + _HOST + b'{"ph":"X","pid":[',
            b"[],",
            b"1]},{}]}",
        ),
    ),
    Bomb(
        "tf-tools",
        "empty lists",
        f"{_SESSION}/host.input_pipeline.json",
        _filled(b'[{"p":{"a":[', b"[],", b"1]}}]"),
    ),
    Bomb(
        "tf-tools",
        "empty steps",
        f"{_SESSION}/host.input_pipeline.pb",
        _filled(b"", b"\x22\x00", b""),
    ),
    Bomb(
        "kineto",
        "empty lists in one event",
        "rank0.pt.trace.json",
        _filled(
            b'{"schemaVersion":1,"traceEvents":[{"ph":"X","cat":"cpu_op","name":"a","pid":[',
            b"[],",
            b'1],"ts":1,"dur":1},' + _STEP + b"]}",
        ),
    ),
    Bomb(
        "kineto",
        "empty lists in the header",
        "rank0.pt.trace.json",
        _filled(
            b'{"schemaVersion":1,"deviceProperties":[',
            b"[],",
            b'1],"traceEvents":[' + _STEP + b"]}",
        ),
    ),
    Bomb("nsight", "rows with a long default", "run/report.sqlite", _export),
    Bomb(
        "torch-compile-log",
        "empty lists in a record",
        "dedicated_log_torch_trace_rank_0_abcdefgh.log",
        _filled(_RECORD + b'{"str":[', b"[],", b"1]}\n"),
    ),
    Bomb("memory-snapshot", "empty lists", "memory.pickle", _filled(_PICKLE, b"]a", b"u.")),
    Bomb("memory-snapshot", "empty dictionaries", "memory.pickle", _filled(_PICKLE, b"}a", b"u.")),
    Bomb("memory-snapshot", "tuples", "memory.pickle", _filled(_PICKLE, b"K\x01\x85a", b"u.")),
    Bomb(
        EVENT_FILES,
        "tags of one value",
        "events.out.tfevents.1700000000.host",
        _filled(b"", _tags, b""),
    ),
)
