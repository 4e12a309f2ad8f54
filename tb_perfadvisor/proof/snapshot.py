"""Copies of a program, outside of the user's checkout.

Code and small files are copied, large data is linked, and what earlier runs wrote is left out, as
are pipes, sockets and devices. No git command is used: worktrees and shared clones would write into
the checkout's git directory, and git runs programs that a checkout's configuration names. For the
same reason no copy has a `.git`, which may also be a file or a link that leads elsewhere.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Final

from msgspec import Struct

from tb_perfadvisor.errors import PerfAdvisorError, UsageError
from tb_perfadvisor.units import format_bytes

PREFIX: Final = "perfadvisor-try-"
LOCK: Final = "lock"
_LARGE_BYTES: Final = 16 << 20
"""Larger files are data: they are linked, and stay where they are."""
_MOST_COPIED_BYTES: Final = 4 << 30
_MOST_FILES: Final = 100_000
_MANY_FILES: Final = 5_000
"""A directory with more files, and no Python code among them, is linked as one."""
_LEFT_OUT: Final = frozenset({".git", ".hg", ".svn", "__pycache__", "node_modules", ".mypy_cache"})
_OF_REPOSITORY: Final = frozenset({"GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"})
_WEIGHTS: Final = (".pt", ".pth", ".ckpt", ".safetensors", ".bin", ".h5", ".keras", ".npz", ".pkl")
"""Programs write such files, some of them by code that `checkout_guard` does not see."""
_OUTPUTS: Final = (".pt.trace.json", ".pt.trace.json.gz", ".xplane.pb", ".trace.json.gz")


class Linked(Struct, frozen=True):
    """Data of the checkout that copies link to, as it was."""

    path: str
    size_bytes: int
    changed_ns: int


class Snapshot(Struct, frozen=True):
    """The program as it was when the trial began, below a directory of ours."""

    checkout: Path
    """The directory that was copied: the top of the repository, or the working directory."""
    directory: Path
    """The copy, which no program runs in."""
    inside: str
    """The working directory of the command, relative to both."""
    linked: tuple[Linked, ...]
    left_out: tuple[str, ...]
    """Weights that would have been too large to copy, relative to the checkout."""

    def copy(self, target: Path) -> None:
        """Copy the snapshot to a directory that does not exist."""
        with _says_what_is_full():
            shutil.copytree(self.directory, target, symlinks=True)

    def has_copied(self, folder: Path) -> bool:
        """Whether a directory was copied: not linked, left out, or outside of the checkout.

        The path has no links.
        """
        if not folder.is_relative_to(self.checkout):
            return False
        copied = self.directory / folder.relative_to(self.checkout)
        return copied.is_dir() and copied.resolve() == copied

    def changed_data(self) -> list[str]:
        """The linked files that are not as they were."""
        return [each.path for each in self.linked if _linked(Path(each.path)) != each]


@contextmanager
def working_space() -> Iterator[Path]:
    """A directory for everything that a trial writes; deleted at its end.

    A trial that was killed could not delete its own. The next one does.
    """
    _delete_abandoned()
    with _says_what_is_full():
        space = Path(os.path.realpath(tempfile.mkdtemp(prefix=PREFIX)))
    lock: IO[bytes] | None = None
    try:
        with _says_what_is_full():
            lock = (space / LOCK).open("wb")
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield space
    finally:
        delete(space)
        if lock is not None:
            lock.close()


def take_snapshot(working_directory: Path, space: Path) -> Snapshot:
    """Copy the program around a working directory into a trial's space.

    The user starts the program in the working directory. `working_space` makes the space.
    """
    started_in = Path(os.path.realpath(working_directory))
    checkout = next(
        (each for each in (started_in, *started_in.parents) if (each / ".git").exists()), started_in
    )
    if checkout in (Path(checkout.anchor), Path.home()):
        raise _no_program(checkout)
    if space.is_relative_to(checkout):
        raise UsageError(
            "lies in the program, whose copies must lie outside of it.",
            where=tempfile.gettempdir(),
            hint="Set TMPDIR to a directory elsewhere.",
        )
    target = space / "snapshot"
    copying = _Copying(checkout, target)
    with _says_what_is_full(checkout):
        target.mkdir()
        copying.copy_directory("")
    inside = os.path.relpath(started_in, checkout)
    taken = Snapshot(checkout, target, inside, tuple(copying.linked), tuple(copying.left_out))
    if not taken.has_copied(started_in):
        raise _no_program(started_in)
    return taken


def _no_program(folder: Path) -> UsageError:
    return UsageError(
        "is not the directory of a program.",
        where=str(folder),
        hint="Start the command where your program lies.",
    )


class _Copying:
    def __init__(self, checkout: Path, target: Path) -> None:
        self._checkout, self._target = checkout, target
        self._bytes = self._files = 0
        self.linked: list[Linked] = []
        self.left_out: list[str] = []

    def copy_directory(self, folder: str) -> None:
        """Copy what is in a directory, whose copy exists."""
        with os.scandir(self._checkout / folder) as found:
            entries = sorted(found, key=lambda entry: entry.name)
        for entry in entries:
            if entry.name in _LEFT_OUT:
                continue
            try:
                self._copy_entry(entry, f"{folder}/{entry.name}" if folder else entry.name)
            except FileNotFoundError:
                # What a program in the checkout renames or deletes meanwhile is none of its code.
                if os.path.lexists(entry.path):
                    raise

    def _copy_entry(self, entry: os.DirEntry[str], path: str) -> None:
        if entry.is_symlink():
            self._copy_link(path)
        elif entry.is_dir():
            if Path(entry.path, "pyvenv.cfg").exists():
                return
            if self._is_data(path):
                self._link(path)
            else:
                (self._target / path).mkdir()
                self.copy_directory(path)
        elif entry.is_file():
            self._copy_file(path, entry.stat().st_size)

    def _copy_file(self, path: str, size_bytes: int) -> None:
        name = path.rpartition("/")[2].lower()
        if "tfevents" in name or name.endswith(_OUTPUTS):
            return
        self._files += 1
        if self._files > _MOST_FILES:
            raise UsageError(
                f"contains more than {_MOST_FILES:,} files besides data.",
                where=str(self._checkout),
                hint="Start the command in the directory of your program.",
            )
        if size_bytes > _LARGE_BYTES and not name.endswith(_WEIGHTS):
            self._link(path)
        elif self._bytes + size_bytes > _MOST_COPIED_BYTES:
            self.left_out.append(path)
        else:
            self._bytes += size_bytes
            shutil.copy2(self._checkout / path, self._target / path)

    def _copy_link(self, path: str) -> None:
        """A link within the program stays one; one to what is not copied keeps leading there."""
        target = Path(os.path.realpath(self._checkout / path))
        is_copied = target.is_relative_to(self._checkout) and _LEFT_OUT.isdisjoint(
            target.relative_to(self._checkout).parts
        )
        if is_copied:
            relative = os.path.relpath(target, self._checkout / Path(path).parent)
            (self._target / path).symlink_to(relative)
        elif target.exists():  # a link to nothing is no file
            self._link(path)

    def _link(self, path: str) -> None:
        source = self._checkout / path
        (self._target / path).symlink_to(os.path.realpath(source))
        known = _linked(source)
        if known is not None:
            self.linked.append(known)

    def _is_data(self, folder: str) -> bool:
        """Whether a directory holds many files and no code."""
        count = 0
        for _, _, files in os.walk(self._checkout / folder):
            if any(name.endswith(".py") for name in files):
                return False
            count += len(files)
        return count > _MANY_FILES


def _linked(path: Path) -> Linked | None:
    with suppress(OSError):
        found = path.stat()
        return Linked(str(path), found.st_size, found.st_mtime_ns)
    return None


def safe_environment(snapshot: Snapshot, copy: Path, given: Mapping[str, str]) -> dict[str, str]:
    """The environment with paths of the checkout's code replaced by those of a copy.

    Hooks of git name its repository, which git would then use in the copy.
    """
    return {
        **{name: value for name, value in given.items() if name not in _OF_REPOSITORY},
        **{
            name: os.pathsep.join(
                path_in_copy(snapshot, copy, part) for part in given[name].split(os.pathsep)
            )
            for name in ("PYTHONPATH",)
            if name in given
        },
    }


def path_in_copy(snapshot: Snapshot, copy: Path, text: str) -> str:
    """The same path in a copy, if a text is the absolute path of what was copied; else the text."""
    if not Path(text).is_absolute():
        return text
    inside = os.path.relpath(os.path.realpath(text), snapshot.checkout)
    if inside.startswith("..") or not os.path.exists(text):  # noqa: PTH110 - text of the user
        return text
    copied = snapshot.directory / inside
    is_copied = copied.exists() and not copied.is_symlink()
    return str(copy / inside) if is_copied else text


@contextmanager
def _says_what_is_full(checkout: Path | None = None) -> Iterator[None]:
    try:
        yield
    except (OSError, shutil.Error) as error:
        name = str(getattr(error, "filename", None) or "")
        if isinstance(error, PermissionError) and checkout and name.startswith(str(checkout)):
            raise PerfAdvisorError(
                f"cannot be copied: {error.strerror}.",
                where=name,
                hint="Make it readable, or move it out of the program.",
            ) from error
        reason = getattr(error, "strerror", None) or "some files could not be copied"
        free = format_bytes(shutil.disk_usage(tempfile.gettempdir()).free)
        raise PerfAdvisorError(
            f"the program cannot be copied to {tempfile.gettempdir()}: {reason}.",
            hint=f"{free} are free there; set TMPDIR to a directory with more room.",
        ) from error


def _delete_abandoned() -> None:
    """Delete the spaces of trials that were killed: nobody holds their lock."""
    for lock in Path(tempfile.gettempdir()).glob(f"{PREFIX}*/{LOCK}"):
        with suppress(OSError), lock.open("rb") as file:
            if lock.stat().st_uid == os.getuid() and not lock.parent.is_symlink():
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                delete(lock.parent)


def delete(directory: Path) -> None:
    """Delete a directory, also where a program took away the right to."""

    def allow_and_retry(function: object, path: str, info: object) -> None:
        with suppress(OSError):
            parent = Path(path).parent
            if parent.is_relative_to(directory):
                parent.chmod(stat.S_IRWXU)
            if not Path(path).is_symlink() and Path(path).is_dir():
                Path(path).chmod(stat.S_IRWXU)
                shutil.rmtree(path, ignore_errors=True)
            else:
                Path(path).unlink(missing_ok=True)

    shutil.rmtree(directory, onerror=allow_and_retry)
