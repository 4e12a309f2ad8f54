"""Output of the commands: results, progress, notes and errors.

Rich is imported late, because its import takes longer than analyzing a small profile.
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
from tb_perfadvisor.units import format_bytes

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID

EXIT_FOUND = 1
EXIT_USAGE = 2
_PIPED_WIDTH = 100
"""Columns of text that goes to a file or another program; snippets of code fit."""


class Format(str, Enum):
    """Output formats of comparisons."""

    TEXT = "text"
    JSON = "json"
    MARKDOWN = "markdown"


class ReportFormat(str, Enum):
    """Output formats of reports."""

    TEXT = "text"
    JSON = "json"
    MARKDOWN = "markdown"
    HTML = "html"
    SARIF = "sarif"


def terminal(**options: Any) -> Console:
    """A console that raises when its reader has gone; rich's own exits with status 1."""
    from rich.console import Console

    class Terminal(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # handled by `printing`

    if not sys.stdout.isatty() and "COLUMNS" not in os.environ:
        options.setdefault("width", _PIPED_WIDTH)
    return Terminal(**options)


@contextmanager
def printing() -> Iterator[None]:
    """Guard writes to stdout: ignore a reader that has gone (`| head`), report a full disk.

    Without it, `| head` would end with the same status as `--fail-on`.
    """
    try:
        yield
        sys.stdout.flush()
    except OSError as error:
        # Python flushes stdout when it exits, which would fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            raise UsageError(
                f"cannot be written: {error.strerror}.", where="standard output"
            ) from error


def fail(message: str) -> NoReturn:
    """Print an error to stderr and exit with status 2."""
    _print_to_stderr("error: ", "bold red", message)
    sys.exit(EXIT_USAGE)


def note(message: str) -> None:
    """Print a note to stderr."""
    _print_to_stderr("note: ", "bold", message)


def _print_to_stderr(label: str, style: str, message: str) -> None:
    from rich.console import Console
    from rich.text import Text

    Console(stderr=True).print(Text.assemble((label, style), message), soft_wrap=True)


class ProgressDisplay:
    """Progress on stderr; shows nothing without a task."""

    def __init__(self, progress: Progress | None = None, task: TaskID | None = None) -> None:
        self._progress = progress
        self._task = task

    def describe(self, stage: str, share: float) -> None:
        """Show the current stage; its share is ignored."""
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, description=stage)

    def advance(self) -> None:
        """Count one more item as done."""
        if self._progress is not None and self._task is not None:
            self._progress.advance(self._task)


@contextmanager
def show_progress(stage: str, total: int | None = None) -> Iterator[ProgressDisplay]:
    """Show progress on stderr, if it is a terminal, and clear it at the end.

    Args:
        stage: What is being done first.
        total: How many items there are; None when unknown.
    """
    if not sys.stderr.isatty():
        yield ProgressDisplay()
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
        yield ProgressDisplay(progress, progress.add_task(stage, total=total))


def write_result(
    render: Callable[[str], str],
    print_text: Callable[[Console], None],
    format: Format | ReportFormat,
    output: Path | None,
) -> None:
    """Write a result to a file or to the terminal.

    Args:
        render: Renders the result in a format.
        print_text: Prints it as text, in color if the console supports it.
        format: The format.
        output: The file; None for the terminal.

    Raises:
        UsageError: If it cannot be written.
    """
    if output is not None:
        try:
            output.write_text(render(format.value), encoding="utf-8")
        except OSError as error:
            raise UsageError(f"cannot be written: {error.strerror}.", where=str(output)) from error
        note(f"wrote {output} ({format_bytes(output.stat().st_size)}).")
        return
    with printing():
        if format.value == Format.TEXT.value:
            print_text(terminal(highlight=False))
        else:
            sys.stdout.write(render(format.value) + "\n")
