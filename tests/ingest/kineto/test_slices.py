"""A trace is the same whatever the number of processes and pieces that decode it."""

from __future__ import annotations

import io
import json
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import Struct, structs

from tb_perfadvisor.errors import PerfAdvisorError
from tb_perfadvisor.execution.process_pool import open_pool
from tb_perfadvisor.ingest.files import budget
from tb_perfadvisor.ingest.format import Slicing
from tb_perfadvisor.ingest.json_trace import document
from tb_perfadvisor.ingest.kineto.reader import read_kineto
from tb_perfadvisor.trace import Source
from tests.fuzz.cases import make_case
from tests.fuzz.formats.kineto import DRAWN, RANKS, RECORDED
from tests.support.kineto_files import event, kernel, to_bytes
from tests.support.night import examples

DEMO_LOGS = Path(__file__).resolve().parents[3] / "demo_logs"


class Here(Executor):
    """Runs each task at once, in this process, and counts them."""

    tasks = 0

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.tasks += 1
        future: Future[Any] = Future()
        future.set_result(fn(*args, **kwargs))
        return future


class Slow(Here):
    """Whose tasks take so long that this process decodes some pieces meanwhile."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future = _Late()
        future.set_result(super().submit(fn, *args, **kwargs).result())
        return future


class _Late(Future[Any]):
    asked = 0

    def done(self) -> bool:
        self.asked += 1
        return self.asked > 2


class Ended(Here):
    """Whose processes end after some tasks, as for lack of memory."""

    def __init__(self, most: int) -> None:
        self.most = most

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        if self.tasks == self.most:
            raise OSError
        future = super().submit(fn, *args, **kwargs)
        if self.tasks == self.most:
            future = Future()
            future.set_exception(MemoryError())
        return future


def contents(value: Any) -> Any:
    """All that a trace holds, for comparisons."""
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.tobytes()
    if isinstance(value, Struct):
        return {name: contents(getattr(value, name)) for name in structs.asdict(value)}
    if isinstance(value, tuple | list):
        return [contents(item) for item in value]
    return value


def outcome(data: bytes, slicing: Slicing | None = None) -> Iterator[Any]:
    """What comes of a file: its traces, and the error that ends them."""
    try:
        for trace in read_kineto(io.BytesIO(data), Source("x", "kineto"), slicing):
            yield contents(trace)
    except PerfAdvisorError as error:
        yield error.message, error.where, error.hint


@contextmanager
def small_slices(slice_bytes: int) -> Iterator[None]:
    """Slices of some size, and as little read at a time."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(document, "_SLICE_BYTES", slice_bytes)
        patched.setattr(document, "_WINDOW_BYTES", 4 * slice_bytes)
        patched.setattr(document, "HEAD_BYTES", 2 * slice_bytes)
        yield


@example(form=2, number=1, slice_bytes=300, piece_bytes=1000, processes=2, others=Here)
@given(
    form=st.sampled_from(range(3)),
    number=st.integers(0, 10**6),
    slice_bytes=st.sampled_from([200, 700, 3000]),
    piece_bytes=st.sampled_from([1, 2000, 9000]),
    processes=st.sampled_from([1, 2, 5]),
    others=st.sampled_from([Here, Slow]),
)
@examples(60)
def test_damaged_files_give_the_same(
    form: int,
    number: int,
    slice_bytes: int,
    piece_bytes: int,
    processes: int,
    others: type[Here],
) -> None:
    with small_slices(slice_bytes):
        slicing = Slicing(others(), processes, piece_bytes=piece_bytes)
        for file in make_case((DRAWN, RANKS, RECORDED)[form], 0, number):
            assert [*outcome(file.data, slicing)] == [*outcome(file.data)]


@pytest.mark.parametrize("slice_bytes", [150, 1000, 20_000])
@pytest.mark.parametrize("name", ["pytorch_ddp_straggler", "pytorch_input_slow"])
def test_recordings_give_the_same(name: str, slice_bytes: int) -> None:
    whole = next((DEMO_LOGS / name).glob("*.json.gz")).read_bytes()
    here = Here()
    with small_slices(slice_bytes):
        found = [*outcome(whole, Slicing(here, 3, piece_bytes=5 * slice_bytes))]
        assert found == [*outcome(whole)]
    assert here.tasks > 4


def test_this_process_decodes_while_others_are_busy() -> None:
    whole = to_bytes(events(200))
    here, slow = Here(), Slow()
    with small_slices(500):
        for others in (here, slow):
            found = [*outcome(whole, Slicing(others, 1, piece_bytes=500))]
            assert found == [*outcome(whole)]
    assert 2 < slow.tasks < here.tasks / 2


def events(count: int) -> list[Any]:
    """Operators with names of their own, and a kernel after each."""
    return [
        made
        for n in range(count)
        for made in (
            event(f"aten::op{n % 70}", 10 * n, 4.5, args={"Input Dims": [[n % 9, 8]]}),
            kernel(f"kernel{n % 50}", 10 * n + 2, 3, correlation=n),
        )
    ]


def test_processes_give_the_same() -> None:
    whole = to_bytes(events(10_000))
    with open_pool(2) as executor:
        found = [*outcome(whole, Slicing(executor, 2, piece_bytes=1))]
    assert found == [*outcome(whole)]


@pytest.mark.parametrize("tasks", [1, 2, 5])
def test_what_an_ended_process_had_is_decoded_here(tasks: int) -> None:
    whole = to_bytes(events(200))
    with small_slices(500):
        assert [*outcome(whole, Slicing(Ended(tasks), 3, piece_bytes=900))] == [*outcome(whole)]


def test_without_a_place_for_files_all_is_decoded_here(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, here = to_bytes(events(200)), Here()
    monkeypatch.setattr(tempfile, "tempdir", "/nowhere")
    with small_slices(500):
        assert [*outcome(whole, Slicing(here, 2, piece_bytes=900))] == [*outcome(whole)]
    assert here.tasks == 0


def test_other_processes_go_on_after_damage() -> None:
    made = [json.dumps(each).encode() for each in events(200)]
    made[100] = made[100].replace(b"4.5", b"nan")
    whole = b'{"schemaVersion": 1, "traceEvents": [' + b", ".join(made) + b"]}"
    here = Here()
    with small_slices(500):
        found = [*outcome(whole, Slicing(here, 1, piece_bytes=1))]
        assert found == [*outcome(whole)]
    assert [note["id"] for note in found[0]["notes"]] == ["malformed-events", "repaired-json"]
    # Of some 45,000 bytes in slices of 500, all but the damaged one and the last.
    assert here.tasks > 60


def test_events_that_begin_and_end_apart_are_joined() -> None:
    made = events(200)
    made[20] = {**made[20], "ph": "B"}
    made[300] = {**made[20], "ph": "E", "ts": 1505}
    whole = to_bytes(made)
    with small_slices(500):
        found = [*outcome(whole, Slicing(Here(), 2, piece_bytes=2000))]
        assert found == [*outcome(whole)]


@pytest.mark.parametrize("free_bytes", [20_000, 50_000])
def test_a_file_that_holds_too_much_ends_at_the_same_place(
    free_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budget, "FREE_BYTES", free_bytes)
    monkeypatch.setattr(budget, "BYTES_PER_BYTE", 0)
    whole = to_bytes(events(2000))
    with small_slices(500):
        ((message, _, _),) = found = [*outcome(whole, Slicing(Here(), 2, piece_bytes=2000))]
        assert found == [*outcome(whole)]
    assert "hold more than" in message
