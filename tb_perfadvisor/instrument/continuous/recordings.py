"""The recordings of one process: the last ones and the slowest stay, the others are deleted."""

from __future__ import annotations

import contextlib
from pathlib import Path

from msgspec import Struct


class StoredRecording(Struct, frozen=True):
    """A recording that was written."""

    first_step: int
    reason: str
    is_rich: bool
    mean_step_s: float
    files: tuple[Path, ...]
    """What this process wrote, and nothing else."""

    @property
    def directory(self) -> Path:
        """Where the files lie."""
        return self.files[0].parent


class Recordings:
    """Keeps some recordings."""

    def __init__(self, keep_last: int, keep_slowest: int) -> None:
        self._keep_last = keep_last
        self._keep_slowest = keep_slowest
        self.kept: list[StoredRecording] = []
        """In the order in which they were recorded."""

    def add(self, recording: StoredRecording, in_use: Path | None = None) -> None:
        """Add one, and delete the files of those that need not stay.

        Args:
            recording: The newest.
            in_use: A directory that someone reads.
        """
        self.kept.append(recording)
        last = self.kept[-self._keep_last :] if self._keep_last else []
        slowest = sorted(self.kept, key=lambda each: -each.mean_step_s)[: self._keep_slowest]
        stay = [
            each
            for each in self.kept
            if each in last or each in slowest or _is_below(each.directory, in_use)
        ]
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
    top = Path(f"step_{recording.first_step:08}")
    for file in recording.files:
        for parent in file.parents:
            with contextlib.suppress(OSError):
                parent.rmdir()  # fails if it holds anything
            if parent.name == top.name:
                break
