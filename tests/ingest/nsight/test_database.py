"""Databases that are damaged, locked, or made to do harm."""

from __future__ import annotations

import gzip
import io
import sqlite3
import struct
import sys
from contextlib import closing
from pathlib import Path

import pytest

from tb_perfadvisor.errors import UnreadableProfileError
from tb_perfadvisor.ingest.discovery import discover
from tb_perfadvisor.ingest.load import load_capture
from tb_perfadvisor.ingest.nsight.database import Database, open_database
from tb_perfadvisor.ingest.nsight.reader import read_nsight
from tb_perfadvisor.trace import EventKind
from tests.support.nsight_exports import SOURCE, a_range, call, kernel, read, write


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


def test_views_and_triggers_do_not_run(path: Path) -> None:
    execute(
        path,
        "CREATE VIEW NVTX_EVENTS AS SELECT 1 AS start, 2 AS end, 59 AS eventType, "
        "'from a view' AS text, 1 AS globalTid",
        "CREATE TRIGGER t AFTER INSERT ON CUPTI_ACTIVITY_KIND_KERNEL BEGIN SELECT 1; END",
    )
    trace = read(path)
    assert "from a view" not in trace.strings
    assert len(trace.rows(EventKind.KERNEL)) == 1990


def test_virtual_tables_are_not_read(path: Path) -> None:
    execute(
        path,
        "PRAGMA writable_schema = ON",
        "INSERT INTO sqlite_master VALUES ('table', 'OSRT_API', 'OSRT_API', 0, "
        "'CREATE/**/VIRTUAL TABLE OSRT_API USING fts5(start, end, globalTid)')",
    )
    assert len(read(path).rows(EventKind.KERNEL)) == 1990


@pytest.mark.parametrize("kind", ["VIRTUAL", "STORED"])
def test_computed_columns_are_refused(path: Path, kind: str) -> None:
    # 16 characters, doubled sixteen times: a megabyte for each row of some bytes.
    doubled = ", ".join(
        f"c{place + 1} AS (c{place} || c{place}) {kind if place == 15 else ''}"
        for place in range(16)
    )
    execute(
        path,
        "DROP TABLE StringIds",
        f"CREATE TABLE StringIds (id INTEGER, c0 TEXT, {doubled}, value AS (c16 || id) {kind})",
        "INSERT INTO StringIds (id, c0) VALUES (1, '0123456789abcdef')",
    )
    assert "the column value of its table StringIds is computed" in refused(path).message


def test_a_computed_column_of_the_user_is_left_alone(path: Path) -> None:
    execute(path, "ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL ADD COLUMN duration AS (end - start)")
    assert len(read(path).rows(EventKind.KERNEL)) == 1990


def test_a_text_that_each_row_repeats_counts_for_each(path: Path) -> None:
    # A default is stored once. 10,000 of 8 kB are 80 MB: more than the 64 MiB of small files.
    execute(
        path,
        "DROP TABLE StringIds",
        "CREATE TABLE StringIds (id INTEGER)",
        "INSERT INTO StringIds SELECT a.start * 5 + b.column1 FROM CUPTI_ACTIVITY_KIND_KERNEL a, "
        "(VALUES (0), (1), (2), (3), (4), (5)) b",
        f"ALTER TABLE StringIds ADD COLUMN value TEXT DEFAULT '{'x' * 8_000}'",
    )
    assert path.stat().st_size < 1 << 20
    assert "of values, which no recording does" in refused(path).message


def test_a_definition_whose_name_is_no_text(path: Path) -> None:
    execute(
        path,
        "PRAGMA writable_schema = ON",
        "INSERT INTO sqlite_master VALUES ('table', CAST(X'ff' AS TEXT), 't', 2, 'CREATE TABLE (')",
    )
    assert "cannot be opened" in refused(path).message


def test_long_definitions_are_refused(path: Path) -> None:
    if sys.version_info < (3, 11):
        pytest.skip("Python 3.10 cannot limit them")
    execute(path, f"CREATE TABLE t (a TEXT DEFAULT '{'x' * 20_000}')")
    assert "cannot be opened" in refused(path).message


def test_pages_that_refer_to_each_other_end(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # 16 levels of pages, each with 100 references to the one below: 100^16 rows that end too early.
    monkeypatch.setattr("tb_perfadvisor.ingest.nsight.database._FREE_STEPS", 1 << 20)
    execute(path, "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET end = start - 1")
    with closing(sqlite3.connect(path)) as connection:
        root, last = connection.execute(
            "SELECT (SELECT rootpage FROM sqlite_master WHERE name = 'CUPTI_ACTIVITY_KIND_KERNEL'),"
            " (SELECT page_count FROM pragma_page_count)"
        ).fetchone()
    content = bytearray(path.read_bytes())
    (leaf,) = struct.unpack_from(">I", content, (root - 1) * 4096 + 8)  # of the page's last cell
    content += b"".join(interior(leaf if level == 0 else last + level) for level in range(16))
    content[(root - 1) * 4096 : root * 4096] = interior(last + 16)
    struct.pack_into(">I", content, 28, last + 16)  # the number of pages
    path.write_bytes(content)
    assert "much longer to read than its size tells" in refused(path).message


def interior(child: int) -> bytes:
    """A page of a table that refers to one other page a hundred times."""
    cells = [4096 - 6 * (place + 1) for place in range(99)]
    page = bytearray(4096)
    struct.pack_into(">BHHHBI", page, 0, 5, 0, len(cells), cells[-1], 0, child)
    for place, at in enumerate(cells):
        struct.pack_into(">H", page, 12 + 2 * place, at)
        key = 4_000 + place  # above the ids of all rows: none is looked for in the last page
        struct.pack_into(">IBB", page, at, child, 0x80 | key >> 7, key & 0x7F)
    return bytes(page)


@pytest.mark.parametrize(
    "value",
    ["'seven'", "7.0001", "X'07'", "'8,9'", "''", "CAST(hex(zeroblob(3000000)) AS BLOB)"],
)
def test_values_of_another_type_are_not_loaded(path: Path, value: str) -> None:
    table = "CUPTI_ACTIVITY_KIND_KERNEL"
    execute(path, f"UPDATE {table} SET streamId = {value}, gridX = {value} WHERE start = 10")
    with open_database({"x": lambda: io.BytesIO(path.read_bytes())}) as database:
        columns = database.integers(table, {"stream": "streamId", "blocks": "gridX * gridY"})
        assert columns["stream"][:2].tolist() == [-1, 7]
        assert columns["blocks"][0] == -1 != columns["blocks"][1]
    execute(path, f"UPDATE {table} SET end = 'later' WHERE start = 13")
    assert len(read(path).rows(EventKind.KERNEL)) == 1989


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
                [*database._query(query)]


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
        assert database.rows("NONE", {"a": int}) == []
        assert not database.has("NONE")


def test_threads_read_the_same(path: Path) -> None:
    execute(
        path,
        "WITH RECURSIVE n(x) AS (VALUES(1) UNION ALL SELECT x + 1 FROM n WHERE x < 50000) "
        "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME (rowid, start, end, globalTid) "
        # Ids with gaps, below and above those that are there.
        "SELECT x * 7 - 100000, x, x * 3, x % 5 FROM n WHERE x * 7 < 100000 OR x * 7 > 110000",
    )
    columns = {"start": "start", "both": "end * globalTid", "none": None}
    with closing(sqlite3.connect(path)) as connection:
        expected = connection.execute(
            "SELECT start, end * globalTid, -1 FROM CUPTI_ACTIVITY_KIND_RUNTIME WHERE end > 50"
        ).fetchall()
    assert len(expected) > 40_000
    for threads in (1, 3):
        with open_database({"x": lambda: io.BytesIO(path.read_bytes())}, threads) as database:
            found = database.integers("CUPTI_ACTIVITY_KIND_RUNTIME", columns, '"end" > 50')
        assert [*zip(*(column.tolist() for column in found.values()), strict=True)] == expected


def test_any_texts_in_blocks(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tb_perfadvisor.ingest.nsight.database._BLOCK", 4)
    texts = ["short", "x" * 20_000, None, "a\0b", "", "\u00e9" * 16_384, "the last"]
    path.unlink()
    write(path, {}, NVTX_EVENTS=[a_range(at, at + 1, text or "") for at, text in enumerate(texts)])
    execute(path, "UPDATE NVTX_EVENTS SET text = NULL WHERE start = 2")
    with open_database({"x": lambda: io.BytesIO(path.read_bytes())}) as database:
        blocks = [*database.blocks("NVTX_EVENTS", {"start": "start"}, "text")]
    assert [block.tolist() for block, _ in blocks] == [[[0, 1, 2, 3]], [[4, 5, 6]]]
    found = b"".join(part for _, part in blocks).decode().split("\0")
    assert found == ["short", "x" * 16_384, "", "a", "", *texts[5:], ""]
