"""Writes large exports of Nsight Systems for benchmarks by repeating a real one.

    python benchmarks/big_nsight.py RECORDED.sqlite big.sqlite --megabytes 1000

The copies follow one another in time, each with its own correlation ids, and its own numbers of
PyTorch's calls in the texts of ranges.
"""

from __future__ import annotations

import argparse
import re
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

_TIMES = ("start", "end", "timestamp", "rawTimestamp")
_IDS = ("correlationId",)
_CALL = re.compile(r"\b(seq|op_id) = (\d{1,12})\b")
_CALLS = 10_000_000
"""More than a recording has, so that the numbers of the copies differ."""


def repeat(source: Path, target: Path, size_bytes: int) -> int:
    """Write a database of at least a size; returns the number of copies."""
    shutil.copyfile(source, target)
    target.chmod(0o600)
    with closing(sqlite3.connect(target)) as connection:
        connection.execute("PRAGMA journal_mode = OFF")
        connection.execute("PRAGMA synchronous = OFF")
        connection.create_function("renumbered", 2, _renumbered)
        tables = _tables_of_events(connection)
        rows = {table: _largest(connection, table, "rowid") for table in tables}
        duration_ns = max(_largest(connection, table, "end") for table in tables)
        ids = max(
            (_largest(connection, table, "correlationId"))
            for table, columns in tables.items()
            if "correlationId" in columns
        )
        copies = 1
        while target.stat().st_size < size_bytes:
            for table, columns in tables.items():
                terms = ", ".join(
                    f'"{each}" + {copies * duration_ns}'
                    if each in _TIMES
                    else f'"{each}" + {copies * ids}'
                    if each in _IDS
                    else f'renumbered("{each}", {copies})'
                    if (table, each) == ("NVTX_EVENTS", "text")
                    else f'"{each}"'
                    for each in columns
                )
                chosen = f'FROM "{table}" WHERE rowid <= {rows[table]}'
                connection.execute(f'INSERT INTO "{table}" SELECT {terms} {chosen}')
            connection.commit()
            copies += 1
    return copies


def _renumbered(text: str | None, copy: int) -> str | None:
    """A range's text with the numbers of a copy."""
    if text is None:
        return None
    return _CALL.sub(lambda found: f"{found[1]} = {int(found[2]) + copy * _CALLS}", text)


def _tables_of_events(connection: sqlite3.Connection) -> dict[str, list[str]]:
    """The tables whose rows lie in time, with their columns."""
    names = [name for (name,) in connection.execute("SELECT name FROM sqlite_schema")]
    columns = {
        name: [column[1] for column in connection.execute(f'PRAGMA table_info("{name}")')]
        for name in names
    }
    return {name: found for name, found in columns.items() if {"start", "end"} <= {*found}}


def _largest(connection: sqlite3.Connection, table: str, column: str) -> int:
    (found,) = connection.execute(f'SELECT max("{column}") FROM "{table}"').fetchone()
    return found or 0


def main() -> None:
    """Write one file."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--megabytes", type=int, required=True)
    arguments = parser.parse_args()
    copies = repeat(arguments.source, arguments.target, arguments.megabytes * 1_000_000)
    print(f"{arguments.target}: {copies} copies, {arguments.target.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
