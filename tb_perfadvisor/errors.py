"""Errors shown to users: each says what is wrong, where, and what to do next."""

from __future__ import annotations


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
