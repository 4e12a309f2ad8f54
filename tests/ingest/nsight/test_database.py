"""Databases that are damaged, locked, or made to do harm."""

from __future__ import annotations

import gzip
import io
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tb_perfadvisor.errors import UnreadableProfileError
from tb_perfadvisor.ingest.discovery import discover
from tb_perfadvisor.ingest.load import load_capture
from tb_perfadvisor.ingest.nsight.database import Database, open_database
from tb_perfadvisor.ingest.nsight.reader import read_nsight
from tb_perfadvisor.trace import EventKind
from tests.support.nsight_exports import SOURCE, call, kernel, read, write


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write(
        tmp_path / "report.sqlite",
        {1: "kernel", 2: "cudaLaunchKernel_v7000"},
        CUPTI_ACTIVITY_KIND_KERNEL=[kernel(at, at + 5, correlation=at) for at in range(10, 2000)],
        CUPTI_ACTIVITY_KIND_RUNTIME=[call(at - 5, at, 2, at) for at in range(10, 2000)],
    )


def execute(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        for statement in statements:
            connection.execute(statement)


def refused(path: Path) -> UnreadableProfileError:
    with pytest.raises(UnreadableProfileError) as raised:
        read(path)
    return raised.value


@pytest.mark.parametrize(
    "content", [b"", b"SQLite format 3\0", b"SQLite format 3\0" + b"\xff" * 4096]
)
def test_what_is_no_database(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    error = refused(path)
    assert error.where == "run/report.sqlite"
    assert "nsys export" in error.hint


@pytest.mark.parametrize("share", [0.3, 0.6, 0.95])
def test_a_truncated_database(path: Path, share: float) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    assert "damaged" in refused(path).message or "opened" in refused(path).message


def test_a_page_of_noise(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[3 * 4096 : 4 * 4096] = b"\xa5" * 4096
    path.write_bytes(content)
    assert "damaged" in refused(path).message


def test_views_triggers_and_computed_columns_do_not_run(path: Path) -> None:
    execute(
        path,
        "CREATE VIEW NVTX_EVENTS AS SELECT 1 AS start, 2 AS end, 59 AS eventType, "
        "'from a view' AS text, 1 AS globalTid",
        "CREATE TABLE OSRT_API (globalTid INT, nameId INT, start INT, "
        "end INT AS (length(zeroblob(1000000000))))",
        "CREATE TRIGGER t AFTER INSERT ON CUPTI_ACTIVITY_KIND_KERNEL BEGIN SELECT 1; END",
    )
    trace = read(path)
    assert "from a view" not in trace.strings
    assert len(trace.rows(EventKind.KERNEL)) == 1990


def test_no_statement_but_reading_is_allowed(path: Path) -> None:
    with open_database({"x": lambda: io.BytesIO(path.read_bytes())}) as database:
        for query in (
            "UPDATE StringIds SET value = ''",
            "ATTACH DATABASE ':memory:' AS other",
            "PRAGMA journal_mode = WAL",
            "SELECT load_extension('x')",
            "SELECT hex(zeroblob(1000000000)) FROM StringIds",
            "WITH RECURSIVE n(x) AS (VALUES(1) UNION ALL SELECT x + 1 FROM n) SELECT x FROM n",
        ):
            with pytest.raises(UnreadableProfileError):
                [*database._slices(query)]


def test_nothing_is_written_beside_the_file(path: Path) -> None:
    before = {each.name: each.read_bytes() for each in path.parent.iterdir()}
    listing = discover(path.parent)
    load_capture(listing, listing.captures[0])
    assert {each.name: each.read_bytes() for each in path.parent.iterdir()} == before


def test_a_locked_database_is_read(path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("BEGIN EXCLUSIVE")
        assert len(read(path).rows(EventKind.KERNEL)) == 1990
        connection.execute("ROLLBACK")


def test_the_log_beside_a_database_counts(path: Path, tmp_path: Path) -> None:
    execute(path, "PRAGMA journal_mode = WAL")
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        connection.execute("DELETE FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE start >= 100")
        connection.commit()
        listing = discover(tmp_path)
        (capture,) = listing.captures
        assert [file.path for file in capture.files] == ["report.sqlite", "report.sqlite-wal"]
        (trace,) = load_capture(listing, capture).traces
        assert len(trace.rows(EventKind.KERNEL)) == 90


def test_a_full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Path, *args: object, **kwargs: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "open", full)
    with pytest.raises(UnreadableProfileError, match="No space left on device") as raised:
        read_nsight({SOURCE.path: lambda: io.BytesIO(b"SQLite format 3\0")}, SOURCE)
    assert "TMPDIR" in raised.value.hint


def test_compressed_exports(path: Path, tmp_path: Path) -> None:
    folder = tmp_path / "compressed"
    folder.mkdir()
    (folder / "report.sqlite.gz").write_bytes(gzip.compress(path.read_bytes()))
    listing = discover(folder)
    (trace,) = load_capture(listing, listing.captures[0]).traces
    assert len(trace.rows(EventKind.KERNEL)) == 1990


def test_too_many_rows(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tb_perfadvisor.ingest.nsight.database._MAX_ROWS", 100)
    assert "more than 100 rows" in refused(path).message


def test_texts_are_decoded_as_far_as_possible(path: Path) -> None:
    execute(path, "UPDATE StringIds SET value = CAST(X'6b65ff' AS TEXT) WHERE id = 1")
    trace = read(path)
    assert trace.name(int(trace.rows(EventKind.KERNEL)[0])) == "ke\ufffd"


def test_columns_of_a_missing_table_are_empty(path: Path) -> None:
    with open_database({"x": lambda: io.BytesIO(path.read_bytes())}) as database:
        assert isinstance(database, Database)
        assert database.integers("NONE", {"a": "a"})["a"].size == 0
        assert database.rows("a", "NONE") == []
        assert database.columns("NONE") == ()
