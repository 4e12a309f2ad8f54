"""From a number to a damaged input, and to what comes of it."""

from __future__ import annotations

import os
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from unittest.mock import patch

from tb_perfadvisor.ingest.files.budget import ITEM_BYTES, Budget
from tests.fuzz.byte_changes import change_bytes
from tests.fuzz.format import Files, Format, SeedFile
from tests.fuzz.formats import FORMATS
from tests.fuzz.invariants import BrokenError
from tests.fuzz.packing import pack

# What is in a file is damaged more often than its bytes: most changed bytes only end the reading.
_BYTES_SHARE = 0.2
_PACKED_BYTES_SHARE = 0.2
_ONE_FILE_SHARE = 0.7
_IN_MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
_TURNS = tuple(each for each in FORMATS.values() for _ in range(each.weight))


def format_of(number: int) -> Format:
    """The format whose turn it is in a run over all formats."""
    return _TURNS[number % len(_TURNS)]


def make_case(of: Format, seed: int, number: int) -> Files:
    """The damaged files of a case, the same for the same numbers."""
    random = Random(f"{seed}/{of.name}/{number}")
    files = of.choose(random)
    everything = set(range(len(files)))
    damaged = {random.randrange(len(files))} if random.random() < _ONE_FILE_SHARE else everything
    return tuple(
        _damaged(file, of, random) if place in damaged else file for place, file in enumerate(files)
    )


def _damaged(file: SeedFile, of: Format, random: Random) -> SeedFile:
    change = change_bytes if random.random() < _BYTES_SHARE else file.change
    data, path = change(file.data, random), file.path
    packed = pack(data, random) if of.may_be_packed else data
    if packed is not data:
        path += ".gz" if not path.endswith(".pb") else ""
        if random.random() < _PACKED_BYTES_SHARE:
            packed = change_bytes(packed, random)
    return SeedFile(path, packed, file.change)


def check(of: Format, files: Files, *, exports: bool = False) -> int:
    """Read files and check what comes of them.

    Args:
        of: Their format.
        files: The files of a log directory.
        exports: Whether to write and check all outputs, too.

    Returns:
        The number of results.

    Raises:
        BrokenError: If something does not hold.
        Exception: Whatever was raised, unless it is an error for the user.
    """
    with TemporaryDirectory(prefix="perfadvisor-fuzz-", dir=_IN_MEMORY) as made:
        root = Path(made) / "logdir"
        root.mkdir()
        for file in files:
            path = root / file.path
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(file.data)
        with (
            patch.dict(os.environ, PERFADVISOR_CACHE_DIR=str(Path(made) / "cache")),
            patch.object(Budget, "expect", _expect_little),
        ):
            return of.check(root, exports=exports)


_FREE_BYTES = 1 << 16
_ITEMS_PER_BYTE = 5
"""The shortest message has two bytes, and a stat of a plane counts as ten items."""
_expect = Budget.expect


def _expect_little(budget: Budget, items: int = 0) -> None:
    """No reader may keep more than the items of the shortest messages, however small a file is."""
    _expect(budget, items)
    kept_bytes = budget.kept_bytes + ITEM_BYTES * items
    if kept_bytes > _FREE_BYTES + _ITEMS_PER_BYTE * ITEM_BYTES * budget.read_bytes:
        raise BrokenError(f"keeps {kept_bytes:,} bytes of {budget.read_bytes:,} that were read")
