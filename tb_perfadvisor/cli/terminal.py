"""What the commands share: printing, progress, and what a user reads when something is wrong.

What draws is imported by what does draw: rich takes longer than a small profile.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from tb_perfadvisor.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID

EXIT_FOUND = 1
EXIT_USAGE = 2


class Format(str, Enum):
    """Output formats."""

    TEXT = "text"
    JSON = "json"
    MARKDOWN = "markdown"


class ReportFormat(str, Enum):
    """Output formats of reports: those of everything, and what shows or gathers findings."""

    TEXT = "text"
    JSON = "json"
    MARKDOWN = "markdown"
    HTML = "html"
    SARIF = "sarif"


def terminal(**options: Any) -> Console:
    """A console that says when its reader has gone; rich's own exits with a status of 1."""
    from rich.console import Console

    class Terminal(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # left to `printing`

    return Terminal(**options)


@contextmanager
def printing() -> Iterator[None]:
    """Write to stdout: a reader that has gone (`| head`) changes nothing, a full disk is said.

    Without it the status of `| head` would be that of `--fail-on`.
    """
    try:
        yield
        sys.stdout.flush()
    except OSError as error:
        # Nothing more can be written, and Python would try to when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            raise UsageError(
                f"cannot be written: {error.strerror}.", where="standard output"
            ) from error


def fail(message: str) -> NoReturn:
    """Say on stderr what is wrong, and end."""
    _say("error: ", "bold red", message)
    sys.exit(EXIT_USAGE)


def note(message: str) -> None:
    """Say on stderr what a user should know."""
    _say("note: ", "bold", message)


def _say(label: str, style: str, message: str) -> None:
    from rich.console import Console
    from rich.text import Text

    Console(stderr=True).print(Text.assemble((label, style), message), soft_wrap=True)


class Watch:
    """Shows how far something is, if anybody watches."""

    def __init__(self, progress: Progress | None = None, task: TaskID | None = None) -> None:
        """Show nothing, or a task."""
        self._progress = progress
        self._task = task

    def tell(self, stage: str, share: float) -> None:
        """Say what is being done; of its share nothing is shown."""
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, description=stage)

    def advance(self) -> None:
        """One more is done."""
        if self._progress is not None and self._task is not None:
            self._progress.advance(self._task)


@contextmanager
def watching(what: str, total: int | None = None) -> Iterator[Watch]:
    """Progress on stderr, gone when done; none where nobody watches.

    Args:
        what: What is being done at first.
        total: How many there are; None where nobody knows.
    """
    if not sys.stderr.isatty():
        yield Watch()
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

    with Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total}"),
        console=Console(stderr=True),
        transient=True,
    ) as progress:
        yield Watch(progress, progress.add_task(what, total=total))


def write(
    encode: Callable[[str], str],
    show: Callable[[Console], None],
    format: Format | ReportFormat,
    output: Path | None,
) -> None:
    """Write a result to a file or to the terminal.

    Args:
        encode: The result in a format.
        show: Prints it as text, in color where the console has any.
        format: The format.
        output: The file; None for the terminal.

    Raises:
        UsageError: When it cannot be written.
    """
    if output is not None:
        try:
            output.write_text(encode(format.value), encoding="utf-8")
        except OSError as error:
            raise UsageError(f"cannot be written: {error.strerror}.", where=str(output)) from error
        return
    with printing():
        if format.value == Format.TEXT.value:
            show(terminal(highlight=False))
        else:
            sys.stdout.write(encode(format.value) + "\n")
