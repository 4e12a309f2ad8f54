"""Errors shown to users: each says what is wrong, where, and what to do next."""

from __future__ import annotations

import errno
import logging
import traceback
import zlib
from pathlib import Path

from tb_perfadvisor.plain_text import plain, plain_lines

# What the system lacks or forbids is no bug.
_ENVIRONMENT = (
    *(errno.EACCES, errno.EPERM, errno.EROFS, errno.EMFILE, errno.ENFILE, errno.ENOSPC),
    *(errno.EDQUOT, errno.EFBIG, errno.EIO, errno.ENOMEM, errno.ESTALE),
)
# The innermost frames identify a bug, and do not depend on the caller.
_FRAMES = 3


class PerfAdvisorError(Exception):
    """Base class of all errors that are shown to users.

    Args:
        message: What is wrong, in one sentence.
        where: The file, run or option concerned (relative where possible); may be empty.
        hint: What to do next; may be empty.
    """

    def __init__(self, message: str, *, where: str = "", hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.where = where
        self.hint = hint

    def __str__(self) -> str:
        """One line: `where: message hint`."""
        text = f"{self.where}: {self.message}" if self.where else self.message
        return f"{text} {self.hint}" if self.hint else text


class UnreadableProfileError(PerfAdvisorError):
    """A file that cannot be read as a profile."""


class InvalidTraceError(PerfAdvisorError):
    """A trace that violates an invariant of the model; raised by the assembler."""


class UsageError(PerfAdvisorError):
    """A command, option or setting that cannot be carried out."""


class NothingFoundError(PerfAdvisorError):
    """A path that contains no readable profile."""


class StoreError(PerfAdvisorError):
    """A remote store that refuses access or cannot be reached."""


class OutOfMemoryError(PerfAdvisorError):
    """A capture that does not fit into the memory."""


class UnexpectedError(PerfAdvisorError):
    """A bug. It costs one capture, and the others are still analyzed.

    Args:
        error: What was raised.
        where: The file or run concerned.
        what: What failed, as the beginning of a sentence.
    """

    def __init__(
        self, error: Exception, where: str = "", what: str = "it could not be analyzed"
    ) -> None:
        self.id = _id_of(error)
        """Equal for the same bug, whatever the file."""
        self.details = "".join(traceback.format_exception(error))
        """The traceback, for the log only."""
        super().__init__(
            f"{what} because of a bug ({type(error).__name__}, {self.id}).",
            where=where,
            hint="Please report it with this id.",
        )

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle only texts, because what was raised may not be picklable."""
        return _unpickled, (self.__dict__,)


def _unpickled(state: dict[str, str]) -> UnexpectedError:
    error = UnexpectedError.__new__(UnexpectedError, state["message"])
    error.__dict__.update(state)
    return error


def contained(
    error: Exception, where: str = "", what: str = "it could not be analyzed"
) -> PerfAdvisorError:
    """The error to show in place of any error that must not end the whole run.

    `where` is the file or run concerned, if the error does not say. `what` failed, as the beginning
    of a sentence.
    """
    if isinstance(error, PerfAdvisorError):
        return error
    if isinstance(error, MemoryError):
        return OutOfMemoryError(
            f"{what}: there is too little memory.",
            where=where,
            hint="Record fewer steps, read with fewer workers, or allow more with "
            "PERFADVISOR_MEMORY_LIMIT_GIB.",
        )
    if isinstance(error, OSError) and error.errno in _ENVIRONMENT:
        return PerfAdvisorError(f"{what}: {error.strerror}.", where=where)
    return UnexpectedError(error, where, what)


def log_bug(error: PerfAdvisorError) -> None:
    """Write the traceback to the log, if the error is a bug."""
    if isinstance(error, UnexpectedError):
        logger().error("%s\n%s", plain(str(error)), plain_lines(error.details))


def logger() -> logging.Logger:
    """The package's logger. It prints nothing, unless a program that uses the package wants it."""
    found = logging.getLogger("tb_perfadvisor")
    if not found.handlers:
        found.addHandler(logging.NullHandler())
    return found


def _id_of(error: Exception) -> str:
    """Digits that say where in the code an error was raised."""
    frames = traceback.extract_tb(error.__traceback__)[-_FRAMES:]
    places = [f"{Path(frame.filename).name} {frame.name}" for frame in frames]
    text = "\n".join([type(error).__name__, *places])
    return f"{zlib.crc32(text.encode('utf-8', 'replace')):08x}"
