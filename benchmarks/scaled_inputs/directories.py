"""Log directories with many files."""

from __future__ import annotations

from pathlib import Path

from scaled_inputs.dimension import Write
from scaled_inputs.kineto import kineto_events


def captures(count: int, folder: Path) -> None:
    """Files that are no profiles, beside one."""
    kineto_events(300, folder)
    for number in range(count):
        (folder / f"{number}.txt").write_text("nothing\n")


LARGEST: dict[Write, int] = {
    captures: 40_000,  # more files are not scanned
}
