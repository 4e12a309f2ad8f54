"""`perfadvisor analyze`: a report on every capture below a path."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from enum import Enum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click
from msgspec.structs import replace

from tb_perfadvisor.cli.help import (
    CONFIG,
    PATH,
    PRICE,
    REPO,
    RUN,
    SOURCE_LINK,
    TIME_LIMIT,
    TOTAL_STEPS,
    WORKERS,
    Argument,
    Command,
    CountRange,
    NumberRange,
    choice_option,
)
from tb_perfadvisor.cli.selection import (
    captures_of_runs,
    inputs_of,
    limits_of,
    note_incomplete_scan,
    with_run_options,
)
from tb_perfadvisor.cli.terminal import (
    EXIT_FOUND,
    EXIT_UNDECIDED,
    Output,
    ReportFormat,
    note,
    show_progress,
    write_result,
)
from tb_perfadvisor.errors import PerfAdvisorError, UsageError
from tb_perfadvisor.plain_text import shell_path

# Numpy and rich take longer to import than a small profile takes to analyze: import them late.
if TYPE_CHECKING:
    from rich.console import Console

    from tb_perfadvisor.engine.config import Config
    from tb_perfadvisor.ingest.captures import Capture
    from tb_perfadvisor.report.report import Report


_COMPILER_LIMIT_S = 120


class Severity(str, Enum):
    """Severities of findings, the lowest first."""

    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"


_EXAMPLES = """\
Examples:
  perfadvisor analyze runs/
  perfadvisor analyze runs/baseline -f html -o report.html
  perfadvisor analyze runs/ --fail-on high    # exit status 1 on a finding"""


@click.command(cls=Command, epilog=_EXAMPLES)
@click.argument("path", cls=Argument, help="A logdir, a run or one file.")
@choice_option(ReportFormat, "--format", "-f", default=ReportFormat.TEXT, help="Output format.")
@click.option("--output", "-o", type=PATH, help="Write to this file instead of the terminal.")
@RUN
@click.option("--select", multiple=True, help="Run only this rule. Can be repeated.")
@click.option("--ignore", multiple=True, help="Skip this rule. Can be repeated.")
@CONFIG
@choice_option(
    Severity,
    "--fail-on",
    help="Exit with status 1 if a finding has at least this severity; with 3 if a "
    "recording is none to act on.",
)
@click.option(
    "--parameters",
    type=CountRange(min=1),
    help="Number of model parameters, if the profile does not tell.",
)
@click.option(
    "--tokens-per-step",
    type=CountRange(min=1),
    help="Tokens that one rank processes in a step, if the profile does not tell.",
)
@PRICE
@TOTAL_STEPS
@click.option(
    "--link-bandwidth",
    type=NumberRange(min=0.001),
    help="Bandwidth of the link between ranks, in GB/s.",
)
@click.option(
    "--device",
    help="The device that the program ran on, if the profile does not tell, or to override it: "
    '"H100 SXM5 80GB".',
)
@click.option(
    "--full", is_flag=True, help="Print the whole report of each capture, if there are several."
)
@click.option(
    "--views",
    is_flag=True,
    help="Include the tab's views in the JSON: steps, input, ranks, memory, kernels.",
)
@click.option(
    "--tables",
    type=PATH,
    help="Also write findings, steps, kernels and operators to this directory, as CSV, and as "
    "Parquet if pyarrow is installed.",
)
@click.option(
    "--ask-tpu-compiler",
    is_flag=True,
    help="Ask XLA's TPU compiler about the sizes that findings propose. Needs the extra `tpu`.",
)
@REPO
@SOURCE_LINK
@WORKERS
@click.option(
    "--scheduler",
    help="Address of a Dask cluster whose workers read the files: tcp://host:8786.",
)
@TIME_LIMIT
@click.option(
    "--cache/--no-cache",
    default=True,
    show_default=True,
    help="Reuse the reports of unchanged files.",
)
def analyze(
    path: str,
    format: ReportFormat,
    output: Path | None,
    run: str | None,
    select: tuple[str, ...],
    ignore: tuple[str, ...],
    config: Path | None,
    fail_on: Severity | None,
    parameters: int | None,
    tokens_per_step: int | None,
    price_per_device_hour: float | None,
    total_steps: int | None,
    link_bandwidth: float | None,
    device: str | None,
    full: bool,
    views: bool,
    tables: Path | None,
    ask_tpu_compiler: bool,
    repo: Path | None,
    source_link: str | None,
    workers: int | None,
    scheduler: str | None,
    time_limit: float | None,
    cache: bool,
) -> None:
    """Analyze every capture below PATH and say what to change."""
    from tb_perfadvisor.ingest.discovery import discover

    with show_progress(f"listing {path}"):
        listing = discover(path)
    captures = captures_of_runs(listing, run)
    from tb_perfadvisor.api.analyses import analyze_captures, nothing_found
    from tb_perfadvisor.contract.model import Rejected
    from tb_perfadvisor.engine.report_cache import open_report_cache
    from tb_perfadvisor.execution import memory_limit, open_execution
    from tb_perfadvisor.proof.attach import with_proofs
    from tb_perfadvisor.proof.ledger import known_proofs
    from tb_perfadvisor.remarks.attach import with_remarks
    from tb_perfadvisor.report.formats.render import document, render
    from tb_perfadvisor.report.report import Report

    settings = _settings(
        config, select, ignore, parameters, tokens_per_step, link_bandwidth, device, views
    )
    if tables is not None:
        if format is ReportFormat.HTML:
            raise UsageError("and `--format html` need a run each.", where="--tables")
        settings = replace(settings, with_views=True, with_all_rows=True)
    settings = with_run_options(settings, price_per_device_hour, total_steps)
    if format is ReportFormat.HTML:  # the page shows what the tab shows
        settings = replace(settings, with_views=True, with_timelines=True)
    repository = None
    if repo is not None:
        from tb_perfadvisor.sources import Repository, with_sources

        repository = Repository(repo)
    settings.check()  # complain about unknown names before reading anything
    if not captures:
        raise nothing_found(path, listing)
    destination = Output(output, inputs_of([listing], config=config, repository=repository))
    reports: list[Report] = []
    rejected = [Rejected(path=file.path, reason=file.reason) for file in listing.rejected]
    report_cache = open_report_cache(Report, settings, note) if cache else None
    sizes_bytes = (file.size_bytes for capture in captures for file in capture.files)
    limits = limits_of(time_limit)
    with (
        memory_limit(limits.memory_bytes),
        open_execution(
            sizes_bytes, workers=workers, scheduler=scheduler, limits=limits
        ) as execution,
        show_progress("reading", len(captures)) as progress,
    ):
        for result in analyze_captures(
            listing,
            captures,
            settings,
            progress.describe,
            execution=execution,
            report_cache=report_cache,
            time_limit_s=limits.time_s,
        ):
            if isinstance(result, Report):
                reports.append(result)
            else:
                rejected.append(result)
            progress.advance()
    if not reports:
        raise PerfAdvisorError(
            "contains no readable profile. "
            + " ".join(f"{file.path}: {file.reason}" for file in rejected[:3]),
            where=path,
        )
    if listing.event_files:
        from tb_perfadvisor.api.training import with_whole_runs

        with show_progress("reading scalars", 1) as progress:
            reports, unread = with_whole_runs(listing, reports, settings, progress.describe)
            rejected += unread
    proofs = known_proofs()
    reports = [with_remarks(with_proofs(report, proofs), settings.remarks) for report in reports]
    if ask_tpu_compiler:
        from tb_perfadvisor.tpu_compiler.estimates import with_answers

        with show_progress("asking the TPU compiler", len(reports)) as progress:
            for place, report in enumerate(reports):
                reports[place] = with_answers(report, time_limit_s=_COMPILER_LIMIT_S)
                progress.advance()
    if repository is not None:
        reports = [with_sources(report, repository, source_link) for report in reports]
    note_incomplete_scan(path, listing)
    if tables is not None:
        inputs = inputs_of([listing], config=config, repository=repository)
        _write_tables(reports, tables, tuple(inputs))
        if not views:
            reports = [replace(report, views=None) for report in reports]
    content = document(reports, rejected)

    is_overview = len(reports) > 1 and not full

    def print_reports(console: Console) -> None:
        from tb_perfadvisor.report.formats.text import print_document, print_overview

        (print_overview if is_overview else print_document)(content, console)

    if format is ReportFormat.BRIEF:
        from tb_perfadvisor.report.formats.brief import render_brief

        write_result(lambda name: render_brief(content, path), print_reports, format, destination)
    else:
        write_result(partial(render, content), print_reports, format, destination)
    if is_overview and format is ReportFormat.TEXT and output is None:
        note("whole reports: name one run with --run, or print all with --full.")
        _suggest_comparison(listing.root, captures)
    if fail_on is not None:
        _fail_on(fail_on, reports)


def _write_tables(reports: Sequence[Report], directory: Path, inputs: Sequence[Path]) -> None:
    """Write the tables, and say what they hold."""
    from tb_perfadvisor.report.tables import write_tables

    written = write_tables(reports, directory, inputs)
    counts = ", ".join(f"{len(table.rows):,} {table.name}" for table in written)
    note(f"wrote tables to {directory}: {counts}.")
    for table in written:
        if table.left_out:
            note(f"{table.left_out:,} more {table.name}, the least costly, are left out.")


def _suggest_comparison(root: str, captures: Sequence[Capture]) -> None:
    """Name two of the runs that are worth comparing, if there are any."""
    from tb_perfadvisor.contract.partners import suggest_partners

    # A name with escapes is shown, but is no path.
    named = [each for each in captures if each.files[0].path == each.files[0].system_path]
    runs = {capture.id: capture.run for capture in named}
    for partners in suggest_partners(named).values():
        for partner in partners:
            paths = [f"{root.rstrip('/')}/{runs[id]}" for id in (partner.base, partner.target)]
            # Two recordings of one run have no paths of their own.
            if paths[0] != paths[1]:
                words = " ".join(map(shell_path, paths))
                note(f"what a change gained: perfadvisor compare {words}")
                return


def _fail_on(lowest: Severity, reports: Iterable[Report]) -> None:
    """Exit with status 1 if there are findings of a severity or above, and say how many.

    Findings that the user decided against do not count.
    """
    from tb_perfadvisor.remarks.attach import is_set_aside

    severities = list(Severity)
    failing = {severity.value for severity in severities[severities.index(lowest) :]}
    count = sum(
        report.trust.level != "do not act"
        and finding.severity in failing
        and not is_set_aside(report.findings, place)
        for report in reports
        for place, finding in enumerate(report.findings)
    )
    if count:
        above = "" if lowest is Severity.HIGH else " or higher"
        note(f"{count} finding{'' if count == 1 else 's'} of {lowest.value}{above} severity.")
    doubtful = [report for report in reports if report.trust.level == "do not act"]
    for report in doubtful:
        reason = report.trust.reasons[0]
        note(f"{report.run}: cannot be decided, because {reason.in_short}. {reason.remedy}".strip())
    if count:
        sys.exit(EXIT_FOUND)
    if doubtful:
        sys.exit(EXIT_UNDECIDED)


def _settings(
    path: Path | None,
    select: tuple[str, ...],
    ignore: tuple[str, ...],
    parameters: int | None,
    tokens_per_step: int | None,
    link_bandwidth: float | None,
    device: str | None,
    views: bool,
) -> Config:
    """Settings from the file, overridden by options."""
    from tb_perfadvisor.engine.config import Config, read_config
    from tb_perfadvisor.signals import Options

    settings = read_config(path) if path is not None else Config()
    options = Options(
        parameters=parameters if parameters is not None else settings.options.parameters,
        link_bandwidth_bytes_per_s=(
            link_bandwidth * 1e9
            if link_bandwidth is not None
            else settings.options.link_bandwidth_bytes_per_s
        ),
        device=device if device is not None else settings.options.device,
        tokens_per_step=(
            tokens_per_step if tokens_per_step is not None else settings.options.tokens_per_step
        ),
    )
    return replace(
        settings,
        select=select or settings.select,
        ignore=(*settings.ignore, *ignore),
        options=options,
        with_views=views,
    )
