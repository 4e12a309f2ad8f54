"""Reads the tables of an SQLite database that may be damaged, or made to do harm.

The database is copied first: SQLite then neither writes beside the user's file nor waits for its
locks, and a file that is replaced meanwhile cannot take its place. Only plain columns of plain
tables are read, and only values of the type that is asked for. No view, trigger, virtual table,
computed column or extension runs, and no function but those that the queries here use. What is read
counts against the budget of the file, and so does the time that SQLite takes.
"""

from __future__ import annotations

import re
import shutil
import sqlite3
import sys
import tempfile
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
from numpy.typing import NDArray

from tb_perfadvisor.errors import UnreadableProfileError
from tb_perfadvisor.ingest.files.budget import Budget
from tb_perfadvisor.ingest.files.compression import Inflated
from tb_perfadvisor.ingest.format import Opener
from tb_perfadvisor.patterns import regex
from tb_perfadvisor.units import format_bytes

Int64 = NDArray[np.int64]
Rows = list[tuple[Any, ...]]
Connections = Sequence[sqlite3.Connection]
_Block = tuple[Int64, bytes]
Kind = type[int] | type[str] | type[bytes]

_WORD: Final = regex(r"[A-Za-z]\w*")

_PIECE_BYTES: Final = 1 << 20
_ROWS: Final = 1 << 9
"""Rows that are Python objects at the same time: so few that they stay in the processor's cache and
that no garbage collection begins."""
_MOST_BLOB_BYTES: Final = 1 << 12
"""Of one value: NCCL's payloads have less than a hundred bytes."""
_MAX_ROWS: Final = 1 << 25
"""More events take several gigabytes of memory."""
_BLOCK: Final = 1 << 12
"""Rows of which SQLite makes one text for each column: a tuple for each takes twice the time."""
_MOST_BLOCKS: Final = 1 << 14
"""Of a table. Its ids may be far apart."""
SEPARATOR: Final = b"\0"
"""Ends each text of a block."""
_LONGEST: Final = 1 << 14
"""Letters of a text in a block."""
_MOST_BLOCK_BYTES: Final = 1 << 22
"""Of a value, and of a column of a block, while SQLite looks at no types."""
_LENGTH, _SQL_LENGTH = 0, 1
"""SQLITE_LIMIT_LENGTH and SQLITE_LIMIT_SQL_LENGTH: `sqlite3` has these since Python 3.11."""
_BYTES_OF_INTEGER: Final = 16
"""In a column of the table, and in the trace."""
_STEPS: Final = 1 << 20
"""Instructions of SQLite's machine between two looks at how many there were."""
_FREE_STEPS: Final = 1 << 25
"""A second or less, whatever the size of the file."""
_STEPS_PER_BYTE: Final = 64
"""Recorded exports need less than 4. In a file whose pages refer to each other, there is no end."""
_FUNCTIONS: Final = frozenset(
    {"char", "count", "group_concat", "ifnull", "length", "max", "min", "substr", "typeof"}
)
_ALLOWED: Final = frozenset({sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ})
_MOST_DEFINITION_BYTES: Final = 1 << 14
"""Of one table: those of Nsight Systems have less than two thousand."""
METADATA: Final = ("META_DATA_EXPORT", "EXPORT_META_DATA")
"""What the export says of itself; the second name is that of releases before 2023.2."""
_MOST_PARTS: Final = 64
_HINT: Final = "Export the recording again: `nsys export --type sqlite FILE.nsys-rep`."


def of_type(column: str, kind: Kind) -> str:
    """The SQL of a column's values of a type; NULL for all others, which are not even loaded."""
    if kind is bytes:  # some versions write hexadecimal digits
        return (
            f"CASE typeof(\"{column}\") WHEN 'text' THEN \"{column}\" WHEN 'blob' THEN "
            f'CASE WHEN length("{column}") <= {_MOST_BLOB_BYTES} THEN "{column}" END END'
        )
    name = "integer" if kind is int else "text"
    return f'CASE typeof("{column}") WHEN \'{name}\' THEN "{column}" END'


_OF_INTEGER: Final = re.compile(r"CASE typeof\((\"\w+\")\) WHEN 'integer' THEN \1 END")
FINISHED: Final = f"{of_type('end', int)} >= {of_type('start', int)}"
"""Rows with a start and an end."""


class Database:
    """The plain tables of an open database."""

    def __init__(
        self, connections: Connections, where: str, budget: Budget, threads: Executor
    ) -> None:
        """List the tables and their columns.

        Nothing else may use the connections: the first, and one for each thread.
        """
        self.budget = budget
        self._connection, *self._free = connections
        self._threads = threads
        self._where = where
        self._texts: dict[int, str] = {}
        self._uncounted_bytes = 0
        self._columns: dict[str, dict[str, bool]] = {}
        self._left_steps = _FREE_STEPS + _STEPS_PER_BYTE * budget.read_bytes
        for connection in connections:
            connection.text_factory = bytes
            connection.set_progress_handler(self._count_steps, _STEPS)
        self._connection.text_factory = self._text
        definitions = "SELECT name, sql FROM sqlite_master WHERE type = 'table' ORDER BY name"
        self._tables = {
            name
            for name, definition in chain.from_iterable(self._query(definitions))
            if isinstance(name, str) and isinstance(definition, str) and _is_plain(name, definition)
        }

    def has(self, table: str, *columns: str) -> bool:
        """Whether there is such a table with these columns."""
        is_plain = self._columns_of(table)
        if not is_plain or not is_plain.keys() >= {*columns}:
            return False
        for column in columns:
            if not is_plain[column]:
                raise UnreadableProfileError(
                    f"the column {column} of its table {table} is computed, but Nsight Systems "
                    "stores all values.",
                    where=self._where,
                    hint=_HINT,
                )
        return True

    def parts_of(self, table: str, *columns: str) -> tuple[str, ...]:
        """The table and those of its name with a suffix, as some tools split or join exports."""
        name = re.compile(rf"{table}(?:_\w{{1,40}})?", re.ASCII)
        found = sorted(part for part in self._tables if name.fullmatch(part))
        return tuple(part for part in found[:_MOST_PARTS] if self.has(part, *columns))

    def integers(
        self, table: str, columns: Mapping[str, str | None], where: str = ""
    ) -> dict[str, Int64]:
        """Columns of integers.

        If the table is missing, all columns are empty. `columns` has names in the table, or
        products and sums of them; None for -1 in all rows, which are also the values of columns
        that the table lacks, and those that are no integers. `where` is SQL that rows have to
        satisfy. The columns have shape (n,), in the order of the table.
        """
        if not self.has(table):
            return {name: np.empty(0, np.int64) for name in columns}
        none = np.empty((len(columns), 0), np.int64)
        blocks = [block for block, _ in self.blocks(table, columns, where=where)]
        return dict(zip(columns, np.concatenate([none, *blocks], axis=1), strict=True))

    def blocks(
        self, table: str, columns: Mapping[str, str | None], text: str = "", where: str = ""
    ) -> Iterator[tuple[Int64, bytes]]:
        """Rows of a table in blocks, with the columns of `integers` and one of texts.

        A block has integers of shape (columns, rows), and the text of each row, which is empty if
        there is none. Each text ends with `SEPARATOR`.
        """
        terms = [self._integer(table, term) for term in columns.values()]
        joined = ["count(*)", *(f"group_concat(ifnull({term}, -1))" for term in terms)]
        if text:
            # No text has a separator: SQLite's functions take it for the end.
            value = f"ifnull(substr({of_type(text, str)}, 1, {_LONGEST}), '')"
            joined.append(f"group_concat({value}, char({ord(SEPARATOR)}))")
        condition = f"rowid >= ? AND rowid < ? AND {where or 1}"
        query = f'SELECT {", ".join(joined)} FROM "{table}" WHERE {condition}'
        count = 0
        for numbers, texts in self._in_threads(table, query, len(columns)):
            count += numbers.shape[1]
            self._check_count(count)
            self.budget.keep(numbers.shape[1], _BYTES_OF_INTEGER * numbers.size + len(texts))
            yield numbers, texts

    def _in_threads(self, table: str, query: str, columns: int) -> Iterator[_Block]:
        """What a query has for each range of ids, read ahead by threads."""
        ends = f'SELECT (SELECT min(rowid) FROM "{table}"), (SELECT max(rowid) FROM "{table}")'
        ((first, last),) = chain.from_iterable(self._query(ends))
        if first is None:
            return
        step = max(_BLOCK, (last - first) // _MOST_BLOCKS + 1)
        waiting: deque[Future[_Block]] = deque()
        most = 4 * len(self._free)
        for at in range(first, last + 1, step):
            waiting.append(self._threads.submit(self._block, query, columns, (at, at + step)))
            if len(waiting) >= most:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()

    def _block(self, query: str, columns: int, ids: tuple[int, int]) -> _Block:
        """The rows with some ids.

        SQLite takes as long to look at a value's type as to read it. So it does so only in blocks
        with a value that does not spell an integer, or if the size of values cannot be limited.
        """
        connection = self._free.pop()
        # Columns of integers convert texts that spell one, so only bytes can be taken for one.
        short = query if sys.version_info < (3, 11) else _OF_INTEGER.sub(r"\1", query)
        with self._saying_what_is_wrong():
            try:
                with _limited(connection, _LENGTH, _MOST_BLOCK_BYTES):
                    block = _read(connection, short, columns, ids)
            except (sqlite3.DataError, ValueError, DeprecationWarning):  # the last of old NumPy
                block = _read(connection, query, columns, ids)
        self._free.append(connection)
        return block

    def rows(self, table: str, columns: Mapping[str, Kind], where: str = "") -> Rows:
        """All rows of a table: integers, texts and bytes. Empty if it lacks one of the columns.

        The table may be missing. Values of another type than their column's become None. `where` is
        SQL that rows have to satisfy.
        """
        return [*chain.from_iterable(self.slices(table, columns, where))]

    def slices(self, table: str, columns: Mapping[str, Kind], where: str = "") -> Iterator[Rows]:
        """The same rows in slices."""
        if columns and self.has(table, *columns):
            terms = ", ".join(of_type(column, kind) for column, kind in columns.items())
            for rows in self._query(f'SELECT {terms} FROM "{table}" WHERE {where or 1}'):
                # Texts were counted when they were read.
                blobs = (value for row in rows for value in row if type(value) is bytes)
                size_bytes = sum(map(len, blobs)) if bytes in columns.values() else 0
                self.budget.keep((1 + len(columns)) * len(rows), size_bytes)
                yield rows

    @property
    def strings(self) -> Mapping[int, str]:
        """The texts of `StringIds`, to which the columns of other tables refer."""
        if not self._texts:
            for rows in self.slices("StringIds", {"id": int, "value": str}):
                self._texts.update((key, text) for key, text in rows if None not in (key, text))
        return self._texts

    def _integer(self, table: str, term: str | None) -> str:
        if term is None or not self.has(table, *_WORD.findall(term)):
            return "-1"
        if term.isidentifier():
            return of_type(term, int)
        value = _WORD.sub(r'"\g<0>"', term)
        # Texts and bytes are greater than all numbers; a product that is too large is a real.
        greatest = ", ".join(re.findall(r'"\w+"', value))
        return f"CASE WHEN max({greatest}) < 1e19 AND typeof({value}) = 'integer' THEN {value} END"

    def _columns_of(self, table: str) -> Mapping[str, bool]:
        """Whether each column of a table is a plain one, by name; empty if it is no plain table."""
        if table in self._tables and table not in self._columns:
            rows = chain.from_iterable(self._query(f'PRAGMA table_xinfo("{table}")'))
            self._columns[table] = {name: hidden == 0 for _, name, _, _, _, _, hidden in rows}
        return self._columns.get(table, {})

    def _query(self, query: str, values: Sequence[int] = ()) -> Iterator[Rows]:
        count = 0
        with self._saying_what_is_wrong():
            cursor = self._connection.execute(query, values)
            while rows := cursor.fetchmany(_ROWS):
                count += len(rows)
                self._count_texts()
                self._check_count(count)
                yield rows

    @contextmanager
    def _saying_what_is_wrong(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OverflowError, UnicodeDecodeError) as error:
            reason = f"the database is damaged: {error}."
            if self._left_steps < 0:
                reason = (
                    "the database is damaged: it takes much longer to read than its size tells."
                )
            raise UnreadableProfileError(reason, where=self._where, hint=_HINT) from error

    def _check_count(self, rows: int) -> None:
        if rows > _MAX_ROWS:
            raise UnreadableProfileError(
                f"one of its tables has more than {_MAX_ROWS:,} rows, too many to analyze at once.",
                where=self._where,
                hint="Record less: `nsys profile --duration SECONDS`, or a capture range.",
            )

    def _text(self, raw: bytes) -> str:
        self._uncounted_bytes += len(raw)
        if self._uncounted_bytes > _PIECE_BYTES:
            self._count_texts()
        # A damaged text is read as far as possible; names are shown, not interpreted.
        return raw.decode("utf-8", "replace")

    def _count_texts(self) -> None:
        self.budget.keep(size_bytes=self._uncounted_bytes)
        self._uncounted_bytes = 0

    def _count_steps(self) -> bool:
        """Whether SQLite has to stop."""
        self._left_steps -= _STEPS
        return self._left_steps < 0


def _read(connection: sqlite3.Connection, query: str, columns: int, ids: tuple[int, int]) -> _Block:
    rows, *values = connection.execute(query, ids).fetchone()
    if not rows:
        return np.empty((columns, 0), np.int64), b""
    # What follows the last value tells whether all of it was read.
    numbers = [np.fromstring(value + b",0", np.int64, sep=",") for value in values[:columns]]
    texts = b"".join(value + SEPARATOR for value in values[columns:])
    return np.array(numbers).reshape(columns, rows + 1)[:, :-1], texts


def _is_plain(name: str, definition: str) -> bool:
    """Whether this is the definition of a table, neither a virtual one nor of another name.

    SQLite writes the first two words of each definition in the same way.
    """
    return (
        re.match(rf"CREATE TABLE [\"'`\[]?{re.escape(name)}[\"'`\]]?\s*\(", definition) is not None
    )


def metadata_of(database: Database) -> dict[str, str]:
    """What the export says of itself, by name."""
    rows: Rows = []
    for table in METADATA:
        rows += database.rows(table, {"name": str, "value": str})
    return {name: value for name, value in rows if None not in (name, value)}


@contextmanager
def open_database(files: Mapping[str, Opener], threads: int = 1) -> Iterator[Database]:
    """Open a database and the write-ahead log beside it.

    `files` has what opens each, by path. The database comes first. `threads` read large tables.
    """
    where = next(iter(files))
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="perfadvisor-")))
        target = folder / "export.sqlite"
        budget = Budget(where)
        for path, open_file in files.items():
            # The log beside `x.sqlite` is `x.sqlite-wal`.
            with open_file() as stream:
                _copy(stream, Path(f"{target}{path.removeprefix(where)}"), path, budget)
        opened = [closing(_connect(target, where)) for _ in range(1 + threads)]
        connections = [*map(stack.enter_context, opened)]
        yield Database(connections, where, budget, stack.enter_context(ThreadPoolExecutor(threads)))


def _connect(path: Path, where: str) -> sqlite3.Connection:
    try:
        connection = sqlite3.connect(path, check_same_thread=False)
        for setting in ("trusted_schema = OFF", "query_only = ON", "cell_size_check = ON"):
            connection.execute(f"PRAGMA {setting}")
        # SQLite keeps all definitions, which may share one long text in the file.
        with _limited(connection, _SQL_LENGTH, _MOST_DEFINITION_BYTES):
            connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except (sqlite3.Error, UnicodeDecodeError) as error:  # the latter is of SQLite's own message
        raise UnreadableProfileError(
            f"the database cannot be opened: {error}.", where=where, hint=_HINT
        ) from error
    connection.set_authorizer(_authorize)
    return connection


@contextmanager
def _limited(connection: sqlite3.Connection, limit: int, most: int) -> Iterator[None]:
    if sys.version_info < (3, 11):
        yield
        return
    before = connection.setlimit(limit, most)
    try:
        yield
    finally:
        connection.setlimit(limit, before)


def _authorize(
    action: int, first: str | None, second: str | None, database: str | None, source: str | None
) -> int:
    """Allow reading, and nothing on behalf of a view or a trigger."""
    is_allowed = (
        action in _ALLOWED
        or (action == sqlite3.SQLITE_FUNCTION and second in _FUNCTIONS)
        or (action == sqlite3.SQLITE_PRAGMA and first == "table_xinfo")
    )
    return sqlite3.SQLITE_OK if is_allowed and source is None else sqlite3.SQLITE_DENY


def _copy(stream: BinaryIO, target: Path, where: str, budget: Budget) -> None:
    """Copy a file, inflated if it is compressed."""
    inflated = Inflated(stream, where)
    try:
        with target.open("wb") as copy:
            while piece := inflated.read(_PIECE_BYTES):
                copy.write(piece)
        budget.read_bytes += inflated.budget.read_bytes
    except OSError as error:
        free = format_bytes(shutil.disk_usage(target.parent).free)
        raise UnreadableProfileError(
            f"it cannot be copied to {target.parent.parent}, where {free} are free: "
            f"{error.strerror or type(error).__name__}.",
            where=where,
            hint="Free some space there, or set TMPDIR to a directory with more.",
        ) from error
