"""Files made so that each of their bytes becomes an object are refused before they fill memory."""

from __future__ import annotations

import gzip
import tracemalloc
from pathlib import Path
from random import Random

import pytest

from tb_perfadvisor.errors import UnreadableProfileError
from tb_perfadvisor.ingest.discovery import discover
from tb_perfadvisor.ingest.files import budget as budget_module
from tb_perfadvisor.ingest.files.budget import BYTES_PER_BYTE, FREE_BYTES, ITEM_BYTES, Budget
from tb_perfadvisor.ingest.formats import FORMATS
from tests.fuzz.formats import FORMATS as DAMAGED
from tests.support.bombs import (
    BOMBS,
    EVENT_FILES,
    Bomb,
    little_is_free,
    read,
    refused_from_bytes,
)

FORMAT_NAMES = {format.name for format in FORMATS} | {EVENT_FILES}
BLOCK_BYTES = 8 << 20
"""What readers may read of a file at a time, whatever is in it."""
REFUSED = "values, which no recording does"


def test_each_format_has_a_bomb() -> None:
    assert {bomb.format for bomb in BOMBS} == FORMAT_NAMES


def test_each_reader_counts_what_it_keeps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing may be kept, no file of any format can be read."""
    monkeypatch.setattr(budget_module, "FREE_BYTES", 0)
    monkeypatch.setattr(budget_module, "BYTES_PER_BYTE", 0)
    refused = set()
    for name, damaged in DAMAGED.items():
        for number, file in enumerate(damaged.choose(Random(1))):
            root = tmp_path / name / str(number)
            (root / file.path).parent.mkdir(parents=True)
            (root / file.path).write_bytes(file.data)
            listing = discover(root)
            formats = {capture.format for capture in listing.captures}
            if formats or listing.event_files:
                with pytest.raises(UnreadableProfileError, match=REFUSED):
                    read(root)
            refused |= formats | ({EVENT_FILES} if listing.event_files else set())
    assert refused == FORMAT_NAMES


@pytest.mark.parametrize("bomb", BOMBS, ids=lambda bomb: f"{bomb.format}: {bomb.what}")
def test_a_bomb_is_refused_from_the_documented_size(bomb: Bomb, tmp_path: Path) -> None:
    with little_is_free() as part:
        limit_bytes = part * refused_from_bytes(bomb)
        bomb.write(tmp_path / "larger", int(1.2 * limit_bytes))
        tracemalloc.start()
        try:
            with pytest.raises(UnreadableProfileError, match=REFUSED):
                read(tmp_path / "larger")
            _, peak_bytes = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        allowed_bytes = part * FREE_BYTES + BYTES_PER_BYTE * 1.2 * limit_bytes
        assert peak_bytes < allowed_bytes + BLOCK_BYTES
        bomb.write(tmp_path / "smaller", int(0.8 * limit_bytes))
        assert REFUSED not in problem_of(tmp_path / "smaller")


def problem_of(root: Path) -> str:
    """What is wrong with the files below a directory: bombs are no whole recordings."""
    try:
        read(root)
    except UnreadableProfileError as error:
        return error.message
    return ""


def test_a_small_file_that_inflates_to_lists_takes_little_memory(tmp_path: Path) -> None:
    # 43 kB, which were read as 22 million lists.
    pickle = next(bomb for bomb in BOMBS if bomb.path == "memory.pickle")
    data = gzip.compress(pickle.make(44_000_000), 9)
    assert len(data) < 50_000
    (tmp_path / "memory.pickle").write_bytes(data)
    tracemalloc.start()
    try:
        with pytest.raises(UnreadableProfileError):
            read(tmp_path)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < FREE_BYTES + BYTES_PER_BYTE * (1 << 24)


def test_what_is_allowed_grows_with_what_was_read() -> None:
    budget = Budget("file", 1_000)
    budget.keep(items=(FREE_BYTES + BYTES_PER_BYTE * 1_000) // ITEM_BYTES)
    with pytest.raises(UnreadableProfileError, match="1000 B hold more than 64"):
        budget.keep(items=1)
    budget.read_bytes += 1_000
    budget.keep(size_bytes=BYTES_PER_BYTE * 1_000 - ITEM_BYTES)
    with pytest.raises(UnreadableProfileError):
        budget.expect(items=1)
