"""The `perfadvisor` command."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from enum import Enum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click
from msgspec.structs import replace

from tb_perfadvisor.cli.compare import compare
from tb_perfadvisor.cli.demo import demo
from tb_perfadvisor.cli.doctor import doctor
from tb_perfadvisor.cli.help import PATH, WORKERS, Argument, Group, one_of
from tb_perfadvisor.cli.publish import publish
from tb_perfadvisor.cli.selection import matching, note_gaps
from tb_perfadvisor.cli.terminal import (
    EXIT_FOUND,
    EXIT_USAGE,
    ReportFormat,
    fail,
    printing,
    terminal,
    watching,
    write,
)
from tb_perfadvisor.errors import PerfAdvisorError

# What analyses, and what draws, is imported by those that do: numpy and rich each take longer
# than a small profile.
if TYPE_CHECKING:
    from rich.console import Console

    from tb_perfadvisor.engine.config import Config
    from tb_perfadvisor.ingest.discovery import Listing
    from tb_perfadvisor.report import Document, Report
    from tb_perfadvisor.report.model import Rejected


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


app = Group(
    "perfadvisor",
    help="Reads PyTorch, TensorFlow and JAX profiles and says what to change, ranked by what each "
    "change would save.",
    no_args_is_help=True,
)


@app.command()
@click.argument("path", cls=Argument, help="A logdir, a run or one file.")
@one_of(ReportFormat, "--format", default=ReportFormat.TEXT, help="How to write the reports.")
@click.option("--output", type=PATH, help="Write to this file in place of the terminal.")
@click.option("--run", help="Only captures whose run matches this regular expression.")
@click.option("--select", multiple=True, help="Run only this rule; may be repeated.")
@click.option("--ignore", multiple=True, help="Leave this rule out; may be repeated.")
@click.option("--config", type=PATH, help="Settings in TOML: rules, limits, bandwidth.")
@one_of(Level, "--fail-on", help="Exit with 1 on a finding of this severity or above.")
@click.option(
    "--parameters",
    type=click.IntRange(min=1),
    help="Parameters of the model, if sizes are not recorded.",
)
@click.option(
    "--link-bandwidth",
    type=click.FloatRange(min=0.001),
    help="Bandwidth of the link between ranks, in GB/s.",
)
@click.option("--views", is_flag=True, help="Add the per-step breakdown.")
@WORKERS
@click.option(
    "--scheduler",
    help="Read files on the workers of this Dask cluster: tcp://host:8786.",
)
@click.option(
    "--cache/--no-cache",
    default=True,
    show_default=True,
    help="Take reports of unchanged files from the user's cache directory.",
)
def analyze(
    path: str,
    format: ReportFormat,
    output: Path | None,
    run: str | None,
    select: tuple[str, ...],
    ignore: tuple[str, ...],
    config: Path | None,
    fail_on: Level | None,
    parameters: int | None,
    link_bandwidth: float | None,
    views: bool,
    workers: int | None,
    scheduler: str | None,
    cache: bool,
) -> None:
    """Analyze every capture found and say what to change."""
    from tb_perfadvisor.ingest.discovery import discover

    with watching(f"looking through {path}"):
        listing = discover(path)
    captures = matching(listing, run)
    from tb_perfadvisor import api
    from tb_perfadvisor.execution import open_execution
    from tb_perfadvisor.report import Report
    from tb_perfadvisor.report.formats.render import render
    from tb_perfadvisor.report.report_cache import open_report_cache

    settings = _settings(config, select, ignore, parameters, link_bandwidth, views)
    if format is ReportFormat.HTML:  # a page shows what the tab does
        settings = replace(settings, with_views=True, with_timelines=True)
    settings.rules()  # name a rule that does not exist before reading anything
    if not captures:
        raise api.nothing_found(listing)
    sizes_bytes = (file.size_bytes for capture in captures for file in capture.files)
    with open_execution(sizes_bytes, workers=workers, scheduler=scheduler) as execution:
        analysis = partial(
            api.analyze_all,
            listing,
            captures,
            settings,
            execution=execution,
            report_cache=open_report_cache(Report, settings) if cache else None,
        )
        content = _watched(analysis, listing, len(captures))
    if not content.reports:
        raise PerfAdvisorError(
            "holds no readable profile. "
            + " ".join(f"{one.path}: {one.reason}" for one in content.rejected[:3]),
            where=path,
        )
    note_gaps(path, listing)

    def show(console: Console) -> None:
        from tb_perfadvisor.report.formats.text import print_document

        print_document(content, console)

    write(partial(render, content), show, format, output)
    severities = {finding.severity for report in content.reports for finding in report.findings}
    if fail_on is not None and severities & _AT_LEAST[fail_on]:
        sys.exit(EXIT_FOUND)


app.add_command(compare)
app.add_command(demo)
app.add_command(doctor)
app.add_command(publish)


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
    with printing():
        terminal().print(table)


@app.command()
@click.argument("rule", cls=Argument, help="A rule's id.")
def explain(rule: str) -> None:
    """Show one rule's page: what it finds, how it measures, when to ignore it."""
    from rich.markdown import Markdown
    from rich.text import Text

    from tb_perfadvisor.rules.page import rule_page
    from tb_perfadvisor.rules.registry import find_rule

    page = rule_page(find_rule(rule))
    console = terminal()
    with printing():
        console.print(Markdown(page) if console.is_terminal else Text(page), soft_wrap=True)


def main() -> NoReturn:
    """Run the command; errors for the user end in one line and exit status 2."""
    # Nothing here is linear algebra: its threads would wait for work, and wait busily.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        status = app(standalone_mode=False)
        sys.exit(status if isinstance(status, int) else 0)
    except click.exceptions.NoArgsIsHelpError as error:
        sys.stdout.write(error.format_message())
        sys.exit(EXIT_USAGE)
    except click.ClickException as error:
        fail(error.format_message())
    except PerfAdvisorError as error:
        fail(str(error))
    except MemoryError:
        fail("there is not enough memory for this. Try --workers 1, or record fewer steps.")
    except (click.Abort, KeyboardInterrupt):
        sys.exit(130)


def _watched(
    analysis: Callable[..., Iterator[Report | Rejected]], listing: Listing, count: int
) -> Document:
    """What an analysis of so many captures comes to, saying how far it is."""
    from tb_perfadvisor.report import Report, document
    from tb_perfadvisor.report.model import Rejected

    reports: list[Report] = []
    rejected = [Rejected(path=one.path, reason=one.reason) for one in listing.rejected]
    with watching("reading", count) as watch:
        for result in analysis(progress=watch.tell):
            if isinstance(result, Report):
                reports.append(result)
            else:
                rejected.append(result)
            watch.advance()
    return document(reports, rejected)


def _settings(
    path: Path | None,
    select: tuple[str, ...],
    ignore: tuple[str, ...],
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
        select=select or base.select,
        ignore=(*base.ignore, *ignore),
        options=options,
        with_views=views,
    )
