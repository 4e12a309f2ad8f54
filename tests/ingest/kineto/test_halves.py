"""A file read in two halves: wherever it is divided, the same as when it is read at once."""

from __future__ import annotations

import gzip
import io
import json
import random
from pathlib import Path
from typing import Any

import pytest

from tb_perfadvisor.ingest.kineto import document, halves
from tb_perfadvisor.ingest.kineto.halves import Rest, middle_of, read_rest
from tb_perfadvisor.ingest.kineto.reader import read_kineto
from tb_perfadvisor.trace import Source, Trace
from tests.support.kineto_files import event, kernel, to_bytes

DEMO_LOGS = Path(__file__).resolve().parents[3] / "demo_logs"
RECORDED = sorted(DEMO_LOGS.glob("pytorch_*/**/*.pt.trace.json.gz"))
TABLES = ("events", "tracks", "kernels", "copies", "collectives", "memory", "operators")


class Second:
    """The second half, read when it is asked for."""

    def __init__(self, data: bytes, begins_behind: int) -> None:
        self.begins_behind = begins_behind
        self.rest = read_rest(io.BytesIO(data), begins_behind)
        self.is_asked = False

    def result(self) -> Rest | None:
        self.is_asked = True
        return self.rest


def read(data: bytes, second: Second | None = None) -> Trace:
    return read_kineto(io.BytesIO(data), Source(path="worker0.pt.trace.json", format=""), second)


def content(trace: Trace) -> dict[str, Any]:
    """All that a trace holds, with texts in place of their numbers."""
    tables: dict[str, Any] = {"notes": trace.notes, "devices": trace.devices}
    texts = {"name", "shapes", "dtypes", "values", "module", "frame", "operation", "dtype", "group"}
    texts |= {"label", "process"}
    strings = [*trace.strings, None]
    for table in TABLES:
        columns = getattr(trace, table)
        for column in columns.__struct_fields__:
            values = getattr(columns, column).tolist()
            if column in texts:
                values = [strings[value] for value in values]
            tables[f"{table}.{column}"] = list(map(repr, values))
    return tables | {"source": trace.source}


def check(data: bytes, middle: int) -> bool:
    """Whether the second half was of use."""
    second = Second(data, middle)
    assert content(read(data, second)) == content(read(data))
    return second.is_asked and second.rest is not None


@pytest.fixture(autouse=True)
def short_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that small files, too, have many."""
    monkeypatch.setattr(document, "_SLICE_BYTES", 2_000)


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.parent.name)
def test_recorded_traces(path: Path) -> None:
    packed = path.read_bytes()
    plain = gzip.decompress(packed)
    assert check(packed, len(plain) // 2)
    places = random.Random(path.name)
    used = [check(plain, places.randrange(len(plain))) for _ in range(3)]
    assert any(used)


def drawn(count: int = 60) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = []
    for number in range(count):
        at = 10 * number
        # What looks like two events lies inside the arguments of one.
        args = {"Concrete Inputs": [{"ph": "X"}, {"ph": "X"}], "Input Dims": [[number % 7, 2]]}
        events += [
            event("aten::mm", at, 8.5, args={**args, "Sequence number": number}),
            event("cudaLaunchKernel", at + 1, 2, "cuda_runtime", args={"correlation": number + 1}),
            kernel(f"volta_sgemm_{number % 5}", at + 3, 6, correlation=number + 1, grid=[2, 2, 1]),
        ]
    return events


HEADER = {"deviceProperties": [{"id": 0, "name": "Tesla V100"}], "distributedInfo": {"rank": 1}}


def test_every_place() -> None:
    data = to_bytes(drawn(12), **HEADER)
    used = [check(data, middle) for middle in range(0, len(data) + 50, 3)]
    # Not behind the last event, and not where what looks like an event lies inside one.
    assert 0.5 < sum(used) / len(used) < 1


def test_keys_behind_the_events() -> None:
    document = {"traceEvents": drawn(), "distributedInfo": {"rank": 3, "world_size": 4}}
    data = json.dumps(document).encode()
    second = Second(data, len(data) // 2)
    assert read(data, second).source.world_size == 4
    assert check(data, len(data) // 2)


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[: int(len(data) * 0.8)],
        lambda data: data[: int(len(data) * 0.4)],
        lambda data: data.replace(b'"volta_sgemm_2"', b'"volta\\sgemm\x02"'),
        lambda data: data.replace(b'"dur": 6', b'"dur": NaN'),
        lambda data: gzip.compress(data)[:-200],
        lambda data: gzip.compress(data[:900]) + gzip.compress(data[900:]),
        lambda data: data[:-2] + b", ]}",
    ],
    ids=["late end", "early end", "characters", "NaN", "broken gzip", "members", "comma"],
)
def test_damage_is_told_alike(damage: Any) -> None:
    data = to_bytes(drawn(), **HEADER)
    middle = len(data) // 2
    damaged = damage(data)
    trace, whole = read(damaged, Second(damaged, middle)), read(damaged)
    assert content(trace) == content(whole)
    assert [note.id for note in trace.notes] == [note.id for note in whole.notes]


def test_spans_that_cross_the_middle_are_read_at_once() -> None:
    begun = {"ph": "B", "cat": "cpu_op", "name": "outer", "pid": 1, "tid": 1, "ts": 0}
    ended = {"ph": "E", "pid": 1, "tid": 1, "ts": 900}
    data = to_bytes([begun, *drawn(), ended], **HEADER)
    second = Second(data, len(data) // 2)
    assert second.rest is None
    assert check(data, len(data) // 2) is False
    assert "outer" in read(data, second).strings


def test_which_files_are_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = b"x" * 1_000
    packed = gzip.compress(plain)
    assert middle_of(io.BytesIO(plain)) is None
    monkeypatch.setattr(halves, "_WORTH_BYTES", 900)
    assert middle_of(io.BytesIO(plain)) == 500
    assert middle_of(io.BytesIO(packed)) == 500
    # What a broken file says of its length may be anything.
    assert middle_of(io.BytesIO(packed[:-4] + b"\xff\xff\xff\xff")) is None
    assert middle_of(io.BytesIO(b"")) is None
