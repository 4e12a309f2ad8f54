"""Reads the tables of an SQLite database that may be damaged, or made to do harm.

The database is copied first: SQLite then neither writes beside the user's file nor waits for its
locks, and a file that is replaced meanwhile cannot take its place. Only plain tables are read. No
view, trigger, virtual table or extension runs, and no function but those that the queries here use.
"""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
from numpy.typing import NDArray

from tb_perfadvisor.errors import UnreadableProfileError
from tb_perfadvisor.ingest.files.compression import Inflated
from tb_perfadvisor.ingest.format import Opener
from tb_perfadvisor.units import format_bytes

Int64 = NDArray[np.int64]
Rows = list[tuple[Any, ...]]

_PIECE_BYTES: Final = 1 << 20
_ROWS: Final = 1 << 9
"""Rows that are Python objects at the same time: so few that they stay in the processor's cache and
that no garbage collection begins."""
_MAX_TEXT_BYTES: Final = 1 << 20
"""Of one text: names of kernels have some kilobytes at most."""
_MAX_ROWS: Final = 1 << 25
"""More events take several gigabytes of memory."""
_FUNCTIONS: Final = frozenset({"ifnull", "substr", "instr"})
_ALLOWED: Final = frozenset({sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ})
METADATA: Final = ("META_DATA_EXPORT", "EXPORT_META_DATA")
"""What the export says of itself; the second name is that of releases before 2023.2."""
_HINT: Final = "Export the recording again: `nsys export --type sqlite FILE.nsys-rep`."


class Database:
    """The plain tables of an open database."""

    def __init__(self, connection: sqlite3.Connection, where: str) -> None:
        """List the tables and their columns.

        Args:
            connection: Nothing else may use it.
            where: The file's path, for errors.

        Raises:
            UnreadableProfileError: If it is no database, or a damaged one.
        """
        self._connection = connection
        self._where = where
        self._texts: dict[int, str] = {}
        definitions = "SELECT name, sql FROM sqlite_master WHERE type = 'table' ORDER BY name"
        self._columns: dict[str, tuple[str, ...]] = {
            name: self._columns_of(name)
            for name, definition in chain.from_iterable(self._slices(definitions))
            if isinstance(name, str)
            and isinstance(definition, str)
            and not definition.lstrip()[:40].upper().startswith("CREATE VIRTUAL")
        }

    def has(self, table: str, *columns: str) -> bool:
        """Whether there is such a table with these columns."""
        return table in self._columns and set(columns) <= set(self._columns[table])

    def columns(self, table: str) -> tuple[str, ...]:
        """The columns of a table; none if it is missing."""
        return self._columns.get(table, ())

    def integers(
        self, table: str, columns: Mapping[str, str | None], where: str = ""
    ) -> dict[str, Int64]:
        """Columns of integers.

        Args:
            table: May be missing: then all columns are empty.
            columns: The SQL of each, such as a column's name. None if the export lacks it. Values
                that are no integers become -1.
            where: SQL that rows have to satisfy.

        Returns:
            Columns of shape (n,), in the order of the table.

        Raises:
            UnreadableProfileError: If the database is damaged, or the table is too large.
        """
        if table not in self._columns:
            return {name: np.empty(0, np.int64) for name in columns}
        terms = ", ".join(term or "-1" for term in columns.values())
        parts: list[Int64] = []
        for rows in self.slices(terms, table, where):
            values = integers(chain.from_iterable(rows))
            parts.append(values.reshape(len(rows), len(columns)))
        joined = np.concatenate(parts) if parts else np.empty((0, len(columns)), np.int64)
        return {name: joined[:, place] for place, name in enumerate(columns)}

    def rows(self, columns: str, table: str, where: str = "") -> Rows:
        """All rows of a table as they are: numbers, texts, bytes or None. Empty if it is missing.

        Raises:
            UnreadableProfileError: If the database is damaged, or the table is too large.
        """
        return [*chain.from_iterable(self.slices(columns, table, where))]

    def slices(self, columns: str, table: str, where: str = "") -> Iterator[Rows]:
        """Rows of a table in slices, as they are. None if it is missing.

        Raises:
            UnreadableProfileError: If the database is damaged, or the table is too large.
        """
        if table in self._columns:
            condition = f" WHERE {where}" if where else ""
            yield from self._slices(f'SELECT {columns} FROM "{table}"{condition}')

    @property
    def strings(self) -> Mapping[int, str]:
        """The texts of `StringIds`, to which the columns of other tables refer."""
        if not self._texts and self.has("StringIds", "id", "value"):
            limit = f"substr(value, 1, {_MAX_TEXT_BYTES})"
            for rows in self.slices(f"id, {limit}", "StringIds"):
                self._texts.update(
                    (key, text) for key, text in rows if type(key) is int and type(text) is str
                )
        return self._texts

    def _columns_of(self, table: str) -> tuple[str, ...]:
        quoted = table.replace('"', '""')
        try:
            cursor = self._connection.execute(f'SELECT * FROM "{quoted}" LIMIT 0')
        except (sqlite3.Error, UnicodeDecodeError):  # such as a column that calls a function
            return ()
        return tuple(column for column, *_ in cursor.description)

    def _slices(self, query: str) -> Iterator[Rows]:
        count = 0
        try:
            cursor = self._connection.execute(query)
            while rows := cursor.fetchmany(_ROWS):
                count += len(rows)
                if count > _MAX_ROWS:
                    break
                yield rows
        except (sqlite3.Error, OverflowError) as error:
            raise UnreadableProfileError(
                f"the database is damaged: {error}.", where=self._where, hint=_HINT
            ) from error
        if count > _MAX_ROWS:
            raise UnreadableProfileError(
                f"one of its tables has more than {_MAX_ROWS:,} rows, too many to analyze at once.",
                where=self._where,
                hint="Record less: `nsys profile --duration SECONDS`, or a capture range.",
            )


def integers(values: Iterable[object]) -> Int64:
    """Values of a table as integers of shape (n,); -1 for what is none."""
    found = [*values]
    try:
        return np.fromiter(found, dtype=np.int64, count=len(found))
    except (TypeError, ValueError, OverflowError):  # a missing value, or one of another type
        return np.array([each if type(each) is int else -1 for each in found], dtype=np.int64)


def metadata_of(database: Database) -> dict[str, str]:
    """What the export says of itself, by name.

    Raises:
        UnreadableProfileError: If the database is damaged.
    """
    rows: Rows = []
    for table in METADATA:
        if database.has(table, "name", "value"):
            rows += database.rows("name, value", table)
    return {name: value for name, value in rows if isinstance(name, str) and isinstance(value, str)}


@contextmanager
def open_database(files: Mapping[str, Opener]) -> Iterator[Database]:
    """Open a database and the write-ahead log beside it.

    Args:
        files: What opens each, by path. The database comes first.

    Raises:
        UnreadableProfileError: If it cannot be copied, is no database, or is damaged.
    """
    where = next(iter(files))
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="perfadvisor-")))
        target = folder / "export.sqlite"
        for path, open_file in files.items():
            # The log beside `x.sqlite` is `x.sqlite-wal`.
            with open_file() as stream:
                _copy(stream, Path(f"{target}{path.removeprefix(where)}"), path)
        connection = _connect(target, where)
        stack.callback(connection.close)
        yield Database(connection, where)


def _connect(path: Path, where: str) -> sqlite3.Connection:
    try:
        connection = sqlite3.connect(path)
        # A damaged text is read as far as possible; names are shown, not interpreted.
        connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
        for setting in ("trusted_schema = OFF", "query_only = ON", "cell_size_check = ON"):
            connection.execute(f"PRAGMA {setting}")
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except sqlite3.Error as error:
        raise UnreadableProfileError(
            f"the database cannot be opened: {error}.", where=where, hint=_HINT
        ) from error
    connection.set_authorizer(_authorize)
    return connection


def _authorize(
    action: int, first: str | None, second: str | None, database: str | None, source: str | None
) -> int:
    """Allow reading, and nothing on behalf of a view or a trigger."""
    if source is not None:
        return sqlite3.SQLITE_DENY
    is_function = action == sqlite3.SQLITE_FUNCTION and second in _FUNCTIONS
    return sqlite3.SQLITE_OK if action in _ALLOWED or is_function else sqlite3.SQLITE_DENY


def _copy(stream: BinaryIO, target: Path, where: str) -> None:
    """Copy a file, inflated if it is compressed."""
    inflated = Inflated(stream, where)
    try:
        with target.open("wb") as copy:
            while piece := inflated.read(_PIECE_BYTES):
                copy.write(piece)
    except OSError as error:
        free = format_bytes(shutil.disk_usage(target.parent).free)
        raise UnreadableProfileError(
            f"it cannot be copied to {target.parent.parent}, where {free} are free: "
            f"{error.strerror or type(error).__name__}.",
            where=where,
            hint="Free some space there, or set TMPDIR to a directory with more.",
        ) from error
