"""Output of the commands: results, progress, notes and errors.

Rich is imported late, because its import takes longer than analyzing a small profile.
"""

from __future__ import annotations

import codecs
import io
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, TextIO

import click

from tb_perfadvisor.errors import UsageError
from tb_perfadvisor.output_files import refuse_inputs, write_file
from tb_perfadvisor.plain_text import ascii_json, plain, plain_lines
from tb_perfadvisor.units import format_bytes

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID

EXIT_FOUND = 1
EXIT_USAGE = 2
EXIT_UNDECIDED = 3
_PIPED_WIDTH = 100
"""Columns of text that goes to a file or another program; snippets of code fit."""
_LOOK_ALIKES = "perfadvisor-look-alikes"
_IN_ASCII = {
    **{"–": "-", "—": "-", "\N{MINUS SIGN}": "-", "─": "-", "…": "...", "→": "->", "×": "x"},
    **{"·": "|", "•": "*", "µ": "u", "█": "#", "≤": "<=", "≥": ">=", "≈": "~", "±": "+/-"},
    **{"²": "2", "ᵀ": "T", "’": "'", "“": '"', "”": '"', "│": "|", "⚠": "!"},
    "\N{NO-BREAK SPACE}": " ",
    "\N{REPLACEMENT CHARACTER}": "?",
}
"""What to print for characters of ours that an encoding lacks; others become escapes."""


_JSON_FORMATS = frozenset({"json", "sarif", "brief"})


class Format(str, Enum):
    """Output formats of comparisons."""

    TEXT = "text"
    JSON = "json"
    MARKDOWN = "markdown"


class TextOrJson(str, Enum):
    """Output formats of what is only shown."""

    TEXT = "text"
    JSON = "json"


class ReportFormat(str, Enum):
    """Output formats of reports."""

    TEXT = "text"
    JSON = "json"
    MARKDOWN = "markdown"
    HTML = "html"
    SARIF = "sarif"
    BRIEF = "brief"


def terminal(*, stderr: bool = False, highlight: bool = True) -> Console:
    """The console for everything that the commands print as text.

    It prints no control characters but its own: names of files, and messages that contain them, may
    hold others, which terminals obey. It raises when its reader has gone; rich's own exits with
    status 1.
    """
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment

    class Terminal(Console):
        def render(
            self, renderable: RenderableType, options: ConsoleOptions | None = None
        ) -> Iterator[Segment]:
            for segment in super().render(renderable, options):
                text, style, control = segment
                yield segment if control else Segment(plain_lines(text), style)

        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # handled by `printing`

    is_piped = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    width = _PIPED_WIDTH if is_piped and not stderr else None
    return Terminal(stderr=stderr, highlight=highlight, width=width)


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
    _print_to_stderr("error: ", message, "red")
    sys.exit(EXIT_USAGE)


def note(message: str) -> None:
    """Print a note to stderr."""
    _print_to_stderr("note: ", message)


def _print_to_stderr(label: str, message: str, color: str | None = None) -> None:
    line = click.style(label, fg=color, bold=True) + plain(message)
    click.echo(line, err=True, color=False if os.environ.get("NO_COLOR") else None)


def prepare_streams() -> None:
    """Let the terminal show characters that its encoding lacks, as cp1252 does on Windows."""
    codecs.register_error(_LOOK_ALIKES, _look_alikes)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and not _is_unicode(stream):
            stream.reconfigure(errors=_LOOK_ALIKES)


def _look_alikes(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lacking = error.object[error.start : error.end]
    return "".join(_IN_ASCII.get(char, ascii(char)[1:-1]) for char in lacking), error.end


def _is_unicode(stream: TextIO) -> bool:
    return (stream.encoding or "utf-8").lower().startswith("utf")


def _write(text: str, format: str) -> None:
    """Write a result to stdout; the same result, whatever the encoding."""
    if _is_unicode(sys.stdout):
        sys.stdout.write(text)
    elif format == "html":  # the page says that it is in UTF-8
        sys.stdout.flush()
        sys.stdout.buffer.write(text.encode())
    else:
        sys.stdout.write(ascii_json(text) if format in _JSON_FORMATS else text)


class ProgressDisplay:
    """Progress on stderr; shows nothing without a task."""

    def __init__(self, progress: Progress | None = None, task: TaskID | None = None) -> None:
        self._progress = progress
        self._task = task

    def describe(self, stage: str, share: float) -> None:
        """Show the current stage, and its share (0-1) in between."""
        if self._progress is not None and self._task is not None:
            percent = f" · {share:.0%}" if 0 < share < 1 else ""
            self._progress.update(self._task, description=f"{plain(stage)}{percent}")

    def advance(self) -> None:
        """Count one more item as done."""
        if self._progress is not None and self._task is not None:
            self._progress.advance(self._task)


@contextmanager
def show_progress(stage: str, total: int | None = None) -> Iterator[ProgressDisplay]:
    """Show progress on stderr, if it is a terminal, and clear it at the end.

    `stage` is done first. `total` is the number of items; None when unknown.
    """
    if not sys.stderr.isatty():
        yield ProgressDisplay()
        return
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

    with Progress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.completed}/{task.total}"),
        console=terminal(stderr=True),
        transient=True,
    ) as progress:
        yield ProgressDisplay(progress, progress.add_task(plain(stage), total=total))


class Output:
    """Where a command writes its result."""

    def __init__(self, file: Path | None, inputs: Iterable[Path]) -> None:
        """Refuse to replace an input, before anything is read.

        Without a file, output goes to the terminal. `inputs` are the files that the command reads.
        """
        self.file = file
        self.inputs = () if file is None else tuple(inputs)
        if file is not None:
            refuse_inputs(file, self.inputs)


def write_result(
    render: Callable[[str], str],
    print_text: Callable[[Console], None],
    format: Format | ReportFormat,
    output: Output,
) -> None:
    """Write a result to a file or to the terminal.

    `render` makes the text of a format; `print_text` prints it in color if the console supports
    that.
    """
    if output.file is not None:
        content = render(format.value).encode()
        write_file(output.file, [content], output.inputs)
        note(f"wrote {output.file} ({format_bytes(len(content))}).")
        return
    with printing():
        if format.value == Format.TEXT.value:
            print_text(terminal(highlight=False))
        else:
            _write(render(format.value) + "\n", format.value)
