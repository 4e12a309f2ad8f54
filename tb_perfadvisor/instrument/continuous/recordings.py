"""The recordings of one process: the last ones and the slowest stay, the others are deleted.

Of the rich ones, which tell names, the last stays. An early one stays until there is another.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from msgspec import Struct

RICH: Final = "_rich"
"""Ends the directories of rich recordings; tb_perfadvisor.ingest.recordings looks for it."""
EARLY: Final = "early"
"""The reason of a recording that is kept only until there is another."""


class StoredRecording(Struct, frozen=True):
    """A recording that was written."""

    first_step: int
    reason: str
    is_rich: bool
    mean_step_s: float
    files: tuple[Path, ...]
    """What this process wrote, and nothing else."""

    @property
    def size_bytes(self) -> int:
        """What the files take now."""
        size_bytes = 0
        for file in self.files:
            with contextlib.suppress(OSError):
                size_bytes += file.stat().st_size
        return size_bytes

    @property
    def directory(self) -> Path:
        """Where the files lie."""
        return self.files[0].parent


class Recordings:
    """Keeps some recordings."""

    def __init__(self, keep_last: int, keep_slowest: int, most_bytes: int | None = None) -> None:
        self._keep_last = keep_last
        self._keep_slowest = keep_slowest
        self._most_bytes = most_bytes
        self.kept: list[StoredRecording] = []
        """In the order in which they were recorded."""

    def add(self, recording: StoredRecording, in_use: Path | None = None) -> None:
        """Add one, and delete the files of those that need not stay.

        Args:
            recording: The newest.
            in_use: A directory that someone reads.
        """
        self.kept.append(recording)
        settled = [each for each in self.kept if each.reason != EARLY] or self.kept[-1:]
        last = settled[-self._keep_last :] if self._keep_last else []
        slowest = sorted(settled, key=lambda each: -each.mean_step_s)[: self._keep_slowest]
        rich = [each for each in settled if each.is_rich][-1:]
        wanted = self._within_limit([*reversed(last), *rich, *slowest])
        self._keep(
            each for each in self.kept if each in wanted or _is_below(each.directory, in_use)
        )

    def clear(self) -> None:
        """Delete all: what was recorded was not of steps."""
        self._keep(())

    def _within_limit(self, wanted: list[StoredRecording]) -> list[StoredRecording]:
        """The newest and the rich one whatever they take, and the others while there is room."""
        if self._most_bytes is None:
            return wanted
        first = [*wanted[:1], *[each for each in wanted if each.is_rich][:1]]
        left, kept = self._most_bytes - sum(each.size_bytes for each in first), first
        for each in wanted:
            if each not in kept and each.size_bytes <= left:
                left -= each.size_bytes
                kept.append(each)
        return kept

    def _keep(self, stay: Iterable[StoredRecording]) -> None:
        stay = list(stay)
        for each in self.kept:
            if each not in stay:
                _delete(each)
        self.kept = stay


def _is_below(directory: Path, other: Path | None) -> bool:
    return other is not None and directory.is_relative_to(other)


def files_below(directory: Path) -> set[Path]:
    """All files in a directory and those inside it; none if it does not exist."""
    return {path for path in directory.rglob("*") if path.is_file()}


def _delete(recording: StoredRecording) -> None:
    """Delete the files and the directories that they leave empty; another rank may use those."""
    for file in recording.files:
        with contextlib.suppress(OSError):
            file.unlink()
    top = f"step_{recording.first_step:08}"
    for file in recording.files:
        for parent in file.parents:
            with contextlib.suppress(OSError):
                parent.rmdir()  # fails if it holds anything
            if parent.name in (top, f"{top}{RICH}"):
                break
