"""The `perfadvisor` command."""

from __future__ import annotations

import gc
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from enum import Enum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from tb_perfadvisor.errors import PerfAdvisorError, UsageError

# What analyses, and what draws, is imported by those that do: numpy and rich each take longer
# than a small profile.
if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

    from tb_perfadvisor.engine.config import Config
    from tb_perfadvisor.ingest.discovery import Capture, Listing
    from tb_perfadvisor.report import Document, Report
    from tb_perfadvisor.report.model import Rejected

EXIT_FOUND = 1
EXIT_USAGE = 2

app = typer.Typer(
    name="perfadvisor",
    help="Reads PyTorch, TensorFlow and JAX profiles and says what to change, ranked by what "
    "each change would save.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)


class Format(str, Enum):
    """Output formats."""

    TEXT = "text"
    JSON = "json"
    MARKDOWN = "markdown"


class Level(str, Enum):
    """Severities."""

    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


_AT_LEAST = {
    Level.HIGH: {"high"},
    Level.MEDIUM: {"high", "medium"},
    Level.LOW: {"high", "medium", "low"},
}


@app.command()
def analyze(
    path: Annotated[str, typer.Argument(help="A logdir, a run or one file.", show_default=False)],
    format: Annotated[Format, typer.Option(help="How to write the reports.")] = Format.TEXT,
    output: Annotated[
        Path | None, typer.Option(help="Write to this file in place of the terminal.")
    ] = None,
    run: Annotated[
        str | None, typer.Option(help="Only captures whose run matches this regular expression.")
    ] = None,
    select: Annotated[
        list[str] | None, typer.Option(help="Run only this rule; may be repeated.")
    ] = None,
    ignore: Annotated[
        list[str] | None, typer.Option(help="Leave this rule out; may be repeated.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="Settings in TOML: rules, limits, bandwidth.")
    ] = None,
    fail_on: Annotated[
        Level | None, typer.Option(help="Exit with 1 on a finding of this severity or above.")
    ] = None,
    parameters: Annotated[
        int | None, typer.Option(min=1, help="Parameters of the model, if sizes are not recorded.")
    ] = None,
    link_bandwidth: Annotated[
        float | None,
        typer.Option(min=0.001, help="Bandwidth of the link between ranks, in GB/s."),
    ] = None,
    views: Annotated[bool, typer.Option("--views", help="Add the per-step breakdown.")] = False,
    workers: Annotated[
        int | None,
        typer.Option(min=1, help="Processes that read files; by default as many as are worth it."),
    ] = None,
    cache: Annotated[
        bool, typer.Option(help="Take reports of unchanged files from the user's cache directory.")
    ] = True,
) -> None:
    """Analyse every capture found and say what to change."""
    from tb_perfadvisor.engine.executors import default_workers, processes

    with ExitStack() as stack:
        # Those that were asked for start while this process imports and looks around.
        executor = stack.enter_context(processes(workers or 1))
        from tb_perfadvisor import api
        from tb_perfadvisor.ingest.discovery import discover
        from tb_perfadvisor.report.kept import open_kept

        settings = _settings(config, select, ignore, parameters, link_bandwidth, views)
        settings.rules()  # a rule that does not exist is said before anything is read
        with _progress() as progress:
            if progress:
                progress.add_task(f"looking through {path}", total=None)
            listing = discover(path)
        captures = _matching(listing, run)
        if not captures:
            raise api.nothing_found(listing)
        if workers is None:
            sizes = [file.size_bytes for capture in captures for file in capture.files]
            workers = default_workers(sizes)
            executor = stack.enter_context(processes(workers))
        analysis = partial(
            api.analyze_all,
            listing,
            captures,
            settings,
            executor=executor,
            files_ahead=2 * workers,
            kept=open_kept(listing, settings) if cache else None,
        )
        content = _watched(analysis, listing, len(captures))
    if not content.reports:
        raise PerfAdvisorError(
            "holds no readable profile. "
            + " ".join(f"{one.path}: {one.reason}" for one in content.rejected[:3]),
            where=path,
        )
    if listing.gaps:
        _note(
            f"{path} was not looked through to its end: {'; '.join(listing.gaps)}. "
            "Name a directory nearer to the profiles to see all."
        )
    _write(content, format, output)
    severities = {finding.severity for report in content.reports for finding in report.findings}
    if fail_on is not None and severities & _AT_LEAST[fail_on]:
        raise typer.Exit(EXIT_FOUND)


@app.command()
def rules() -> None:
    """List every rule."""
    from rich.table import Table
    from rich.text import Text

    from tb_perfadvisor.rules.registry import all_rules

    table = Table(box=None, pad_edge=False)
    for heading in ("Rule", "Category", "What to do", ""):
        table.add_column(heading)
    for rule in all_rules():
        table.add_row(
            Text(rule.id, style="bold"),
            rule.category,
            rule.title,
            Text("preview" if rule.is_preview else "", style="dim"),
        )
    with _printing():
        _terminal().print(table)


@app.command()
def explain(rule: Annotated[str, typer.Argument(help="A rule's id.", show_default=False)]) -> None:
    """Show one rule's page: what it finds, how it measures, when to ignore it."""
    from rich.markdown import Markdown
    from rich.text import Text

    from tb_perfadvisor.rules.page import rule_page
    from tb_perfadvisor.rules.registry import find_rule

    page = rule_page(find_rule(rule))
    console = _terminal()
    with _printing():
        console.print(Markdown(page) if console.is_terminal else Text(page), soft_wrap=True)


def main() -> NoReturn:
    """Run the command; errors for the user end in one line and exit status 2."""
    # Nothing here is linear algebra: its threads would wait for work, and wait busily.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # What imports make, stays: looking for garbage in it is a tenth of a small analysis.
    gc.set_threshold(50_000)
    try:
        status = app(standalone_mode=False)
        sys.exit(status if isinstance(status, int) else 0)
    except PerfAdvisorError as error:
        _fail(str(error))
    except MemoryError:
        _fail("there is not enough memory for this. Try --workers 1, or record fewer steps.")
    except typer.Abort:
        sys.exit(130)
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:
        show = getattr(error, "format_message", None)  # click's own usage errors
        if show is None:
            raise
        message = str(show())
        if not message:  # `perfadvisor` alone: its help has been printed
            sys.exit(EXIT_USAGE)
        _fail(message)


def _terminal(**options: Any) -> Console:
    """A console that says when its reader has gone; rich's own exits with a status of 1."""
    from rich.console import Console

    class Terminal(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # left to `_printing`

    return Terminal(**options)


@contextmanager
def _printing() -> Iterator[None]:
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


def _fail(message: str) -> NoReturn:
    _say("error: ", "bold red", message)
    sys.exit(EXIT_USAGE)


def _note(message: str) -> None:
    _say("note: ", "bold", message)


def _say(label: str, style: str, message: str) -> None:
    from rich.console import Console
    from rich.text import Text

    Console(stderr=True).print(Text.assemble((label, style), message), soft_wrap=True)


def _progress() -> AbstractContextManager[Progress | None]:
    """Progress on stderr, gone when done; none where nobody watches."""
    if not sys.stderr.isatty():
        return nullcontext()
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total}"),
        console=Console(stderr=True),
        transient=True,
    )


def _watched(
    analysis: Callable[..., Iterator[Report | Rejected]], listing: Listing, count: int
) -> Document:
    """What an analysis of so many captures comes to, saying how far it is."""
    from tb_perfadvisor.report import Report, document
    from tb_perfadvisor.report.model import Rejected

    reports: list[Report] = []
    rejected = [Rejected(path=one.path, reason=one.reason) for one in listing.rejected]
    with _progress() as progress:
        task = progress.add_task("reading", total=count) if progress else None

        def tell(stage: str, share: float) -> None:
            if progress and task is not None:
                progress.update(task, description=stage)

        for result in analysis(progress=tell):
            if isinstance(result, Report):
                reports.append(result)
            else:
                rejected.append(result)
            if progress and task is not None:
                progress.advance(task)
    return document(reports, rejected)


def _matching(listing: Listing, run: str | None) -> tuple[Capture, ...]:
    """The captures whose run matches a regular expression."""
    if run is None:
        return listing.captures
    captures = tuple(one for one in listing.captures if _pattern(run).search(one.run))
    if not captures and listing.captures:
        raise UsageError(
            f"no run matches {run!r}.",
            hint="Runs: " + ", ".join(sorted({one.run or "." for one in listing.captures})),
        )
    return captures


def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise UsageError(f"--run {text!r} is no regular expression: {error}.") from error


def _settings(
    path: Path | None,
    select: list[str] | None,
    ignore: list[str] | None,
    parameters: int | None,
    link_bandwidth: float | None,
    views: bool,
) -> Config:
    """Settings from the file, overridden by options."""
    from tb_perfadvisor.engine.config import Config, read_config
    from tb_perfadvisor.signals import Options

    base = read_config(path) if path is not None else Config()
    options = Options(
        parameters=parameters if parameters is not None else base.options.parameters,
        link_bandwidth_bytes_per_s=(
            link_bandwidth * 1e9
            if link_bandwidth is not None
            else base.options.link_bandwidth_bytes_per_s
        ),
    )
    return replace(
        base,
        select=tuple(select) if select else base.select,
        ignore=(*base.ignore, *(ignore or ())),
        options=options,
        with_views=views,
    )


def _write(content: Document, format: Format, output: Path | None) -> None:
    from tb_perfadvisor.report import encode

    if output is not None:
        try:
            output.write_text(encode(content, format.value), encoding="utf-8")
        except OSError as error:
            raise UsageError(f"cannot be written: {error.strerror}.", where=str(output)) from error
        return
    with _printing():
        if format is Format.TEXT:
            from tb_perfadvisor.report.text import print_document

            print_document(content, _terminal(highlight=False))
        else:
            sys.stdout.write(encode(content, format.value) + "\n")
