"""Errors that reach a user: each says what is wrong, where, and what to do next."""

from __future__ import annotations


class PerfAdvisorError(Exception):
    """Base of every error that is meant for the user's eyes.

    Args:
        message: What is wrong, in one sentence.
        where: The file, run or option concerned (relative where possible); may be empty.
        hint: What to do next; may be empty.
    """

    def __init__(self, message: str, *, where: str = "", hint: str = "") -> None:
        """Keep the three parts apart, so that every front can lay them out its own way."""
        super().__init__(message)
        self.message = message
        self.where = where
        self.hint = hint

    def __str__(self) -> str:
        """One line: `where: message hint`."""
        text = f"{self.where}: {self.message}" if self.where else self.message
        return f"{text} {self.hint}" if self.hint else text


class UnreadableProfileError(PerfAdvisorError):
    """A file that cannot be read as a profile: what it is instead, or where it breaks."""


class InvalidTraceError(PerfAdvisorError):
    """A trace that breaks an invariant of the model; raised by the assembler."""


class UsageError(PerfAdvisorError):
    """A command, option or setting that cannot be carried out."""


class NothingFoundError(PerfAdvisorError):
    """A path that holds no readable profile at all."""


class StoreError(PerfAdvisorError):
    """A remote store that refuses, or that cannot be reached."""
