"""Asks a running program to record its next steps: by a file in the directory of its run.

Nothing listens on a port. A program that can be asked leaves a file that says so, and looks for a
request between its steps. Both files belong to the same user, and neither may be a link: another
user who may write to the directory can start nothing, and cannot have anything written elsewhere.
"""

from __future__ import annotations

import json
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal

PROGRAM: Final = ".perfadvisor-program"
"""A program that can be asked, in the directory of its run."""
REQUEST: Final = ".perfadvisor-record"
_LOOK_EVERY_S: Final = 0.25
_REST_S: Final = 60.0
_MOST_BYTES: Final = 1000
_MOST_DEPTH: Final = 3
_MOST_DIRECTORIES: Final = 2_000
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0)

Answer = Literal["asked", "asked before", "cannot be asked"]


class Requests:
    """A program's side."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._path = str(directory / REQUEST)
        self._looked_s = self._recorded_s = float("-inf")

    def announce(self) -> None:
        """Say that this program can be asked, once it makes steps."""
        self._remove(REQUEST)
        self._directory.mkdir(parents=True, exist_ok=True)
        # One that says so again is never without the file.
        new = f"{PROGRAM}.{os.getpid()}"
        self._remove(new)
        descriptor = os.open(self._directory / new, _NEW, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump({"host": socket.gethostname(), "process": os.getpid()}, file)
        (self._directory / new).replace(self._directory / PROGRAM)

    def withdraw(self) -> None:
        """This program ends."""
        self._remove(PROGRAM)
        self._remove(REQUEST)

    def _remove(self, name: str) -> None:
        if _is_own(self._directory / name):
            with suppress(OSError):
                (self._directory / name).unlink()

    def waits(self, now_s: float) -> bool:
        """Whether a request waits; looks four times a second, and grants one a minute."""
        if now_s - self._looked_s < _LOOK_EVERY_S:
            return False
        self._looked_s = now_s
        return now_s - self._recorded_s >= _REST_S and _is_own(self._path)

    def take(self, now_s: float) -> bool:
        """Whether to record from now on; answers a request once."""
        if not self.waits(now_s):
            return False
        self._recorded_s = now_s
        os.unlink(self._path)  # noqa: PTH108 - the others are texts, too
        return True


def programs_below(root: str | os.PathLike[str]) -> list[Path]:
    """The directories of runs whose programs can be asked, without following links."""
    return [path for path in _directories(root) if can_be_asked(path)]


def can_be_asked(directory: Path) -> bool:
    """Whether a program has said that it can be asked, and has not ended since."""
    path = directory / PROGRAM
    if not _is_own(path):
        return False
    try:
        said = json.loads(path.read_bytes()[:_MOST_BYTES])
        process, is_here = int(said["process"]), said["host"] == socket.gethostname()
    except (OSError, ValueError, KeyError, TypeError):
        return False
    if process <= 0 or not is_here or not hasattr(os, "geteuid"):
        return process > 0
    try:
        os.kill(process, 0)  # looks, and sends nothing
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def ask(directory: Path) -> Answer:
    """Ask the program of a run to record its next steps."""
    if not can_be_asked(directory):
        return "cannot be asked"
    try:
        os.close(os.open(directory / REQUEST, _NEW, 0o600))
    except FileExistsError:
        return "asked before" if _is_own(directory / REQUEST) else "cannot be asked"
    except OSError:
        return "cannot be asked"
    return "asked"


def _directories(root: str | os.PathLike[str]) -> Iterator[Path]:
    top = Path(root)
    for found, (name, below, _) in enumerate(os.walk(top), 1):
        path = Path(name)
        depth = len(path.relative_to(top).parts)
        # Recordings have directories of their own.
        below[:] = [
            each for each in below if depth < _MOST_DEPTH and not each.startswith(("step_", "."))
        ]
        yield path
        if found >= _MOST_DIRECTORIES:
            return


def _is_own(path: str | Path) -> bool:
    """Whether this is a plain file of the same user."""
    try:
        found = os.lstat(path)
    except OSError:
        return False
    is_ours = not hasattr(os, "geteuid") or found.st_uid == os.geteuid()
    return stat.S_ISREG(found.st_mode) and is_ours and found.st_nlink == 1
