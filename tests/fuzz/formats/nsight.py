"""Exports of Nsight Systems: drawn ones with changed values, tables and pages."""

from __future__ import annotations

import sqlite3
import tempfile
from contextlib import closing, suppress
from pathlib import Path
from random import Random

from tests.fuzz.byte_changes import change_bytes
from tests.fuzz.format import Files, Format, SeedFile
from tests.fuzz.formats.drawn import any_drawing, written
from tests.fuzz.values import INTEGERS, NUMBERS, TEXTS

_BYTES_SHARE = 0.3
_LARGEST = 2**63 - 1


def _change(data: bytes, random: Random) -> bytes:
    """The database with one to four changes to its values or tables, or to its pages."""
    if random.random() < _BYTES_SHARE:
        return change_bytes(data, random)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "export.sqlite")
        path.write_bytes(data)
        with closing(sqlite3.connect(path)) as connection, connection:
            for _ in range(random.choice((1, 1, 2, 3, 4))):
                # Such as an integer that a column of keys has already.
                with suppress(sqlite3.Error, OverflowError, UnicodeEncodeError):
                    _change_table(connection, random)
        return path.read_bytes()


def _change_table(connection: sqlite3.Connection, random: Random) -> None:
    tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master")]
    table = random.choice(tables)
    columns = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
    column = random.choice(columns)
    rows = [row for (row,) in connection.execute(f"SELECT rowid FROM {table}")]
    some = random.sample(rows, min(len(rows), random.choice((1, 3, 1000))))
    choice = random.randrange(14)
    if choice < 6:
        value = random.choice((*NUMBERS, *TEXTS, None, b"\0\xff"))
        if isinstance(value, int):
            value = max(-_LARGEST, min(value, _LARGEST))
        for row in some:
            connection.execute(f"UPDATE {table} SET {column} = ? WHERE rowid = ?", (value, row))
    elif choice == 6:
        connection.executemany(f"DELETE FROM {table} WHERE rowid = ?", [(row,) for row in some])
    elif choice == 7:
        connection.execute(f"INSERT INTO {table} SELECT * FROM {table} LIMIT 100")
    elif choice == 8:
        connection.execute(f"ALTER TABLE {table} RENAME COLUMN {column} TO other")
    elif choice == 9:
        connection.execute(f"DROP TABLE {table}")
    elif choice < 12:  # a number at the limit of a type, in a column of numbers
        number = max(-_LARGEST - 1, min(random.choice(INTEGERS), _LARGEST))
        numbers = [name for name in columns if name not in ("text", "value", "name")]
        name = random.choice(numbers or columns)
        connection.executemany(
            f"UPDATE {table} SET {name} = ? WHERE rowid = ?", [(number, row) for row in some]
        )
    else:  # a column that is computed, or that all rows share
        connection.execute(f"ALTER TABLE {table} RENAME COLUMN {column} TO other")
        kind = random.choice(("AS (other)", "AS (other || other)", "DEFAULT 'text'", "DEFAULT 7"))
        connection.execute(f"ALTER TABLE {table} ADD COLUMN {column} {kind}")


def _choose(random: Random) -> Files:
    data = written("nsight", any_drawing(random), "pytorch")
    return (SeedFile("run/report.sqlite", data, _change),)


NSIGHT = Format("nsight", _choose, may_be_packed=False)
