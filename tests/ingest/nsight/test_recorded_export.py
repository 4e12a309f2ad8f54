"""A recorded export against sums by SQL on the same file."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import numpy as np
import pytest

from tb_perfadvisor.ingest.discovery import discover
from tb_perfadvisor.ingest.load import load_capture
from tb_perfadvisor.trace import EventKind, Run
from tests.support.corpus_traces import CORPUS

pytestmark = pytest.mark.corpus

PATH = CORPUS / "gindachen/tests_fixtures_mfu_2gpu_before.sqlite"


def query(sql: str) -> list[tuple[int, ...]]:
    with closing(sqlite3.connect(f"file:{PATH}?mode=ro&immutable=1", uri=True)) as connection:
        return connection.execute(sql).fetchall()


@pytest.fixture(scope="module")
def run() -> Run:
    listing = discover(PATH)
    return load_capture(listing, listing.captures[0])


def test_both_ranks(run: Run) -> None:
    assert [(source.rank, source.world_size) for source in run.sources] == [(0, 2), (1, 2)]


@pytest.mark.parametrize(
    ("table", "kinds"),
    [
        ("KERNEL", (EventKind.KERNEL, EventKind.COLLECTIVE)),
        ("MEMCPY", (EventKind.COPY,)),
        ("MEMSET", (EventKind.MEMSET,)),
    ],
)
def test_sums_of_device_work(run: Run, table: str, kinds: tuple[EventKind, ...]) -> None:
    expected = query(
        "SELECT deviceId, count(*), sum(end - start) "
        f"FROM CUPTI_ACTIVITY_KIND_{table} GROUP BY deviceId ORDER BY deviceId"
    )
    found = []
    for trace in run.traces:
        rows = trace.rows(*kinds)
        # rocprof's copies by kernels are not there.
        found.append((len(rows), int(trace.events.duration_ns[rows].sum())))
    assert found == [tuple(row[1:]) for row in expected]


def test_sums_of_calls(run: Run) -> None:
    kinds = (EventKind.LAUNCH, EventKind.SYNCHRONIZE, EventKind.ALLOCATE, EventKind.RUNTIME)
    count = total = 0
    for trace in run.traces:
        rows = trace.rows(*kinds)
        count += len(rows)
        total += int(trace.events.duration_ns[rows].sum())
    assert [(count, total)] == query(
        "SELECT count(*), sum(end - start) FROM CUPTI_ACTIVITY_KIND_RUNTIME"
    )


def test_every_launch_is_linked_that_the_file_has(run: Run) -> None:
    (expected,) = query(
        "SELECT count(*) FROM CUPTI_ACTIVITY_KIND_KERNEL k JOIN CUPTI_ACTIVITY_KIND_RUNTIME r "
        "ON k.correlationId = r.correlationId AND k.globalPid >> 24 = r.globalTid >> 24"
    )[0]
    linked = 0
    for trace in run.traces:
        rows = trace.rows(EventKind.KERNEL, EventKind.COLLECTIVE)
        linked += int((trace.events.launched_by[rows] >= 0).sum())
    assert linked == expected


def test_ranges_are_operators_and_all_to_alls(run: Run) -> None:
    operators = sum(len(trace.rows(EventKind.OPERATOR)) for trace in run.traces)
    (aten,) = query("SELECT count(*) FROM NVTX_EVENTS WHERE text LIKE 'aten::%'")[0]
    assert operators > aten > 1000
    for trace in run.traces:
        texts = {trace.text(each) for each in np.unique(trace.collectives.operation).tolist()}
        assert "send-recv" in texts or "all-to-all" in texts
