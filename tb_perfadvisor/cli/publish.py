"""`perfadvisor publish`: findings for TensorBoard servers without plugins."""

from __future__ import annotations

from pathlib import Path

import click

from tb_perfadvisor.cli.help import CONFIG, RUN, Argument, Command
from tb_perfadvisor.cli.selection import captures_of_runs, note_incomplete_scan
from tb_perfadvisor.cli.terminal import note, printing, show_progress, terminal
from tb_perfadvisor.errors import PerfAdvisorError, UsageError


@click.command(cls=Command)
@click.argument("logdir", cls=Argument, help="A logdir, local or in a bucket.")
@RUN
@CONFIG
def publish(logdir: str, run: str | None, config: Path | None) -> None:
    """Write the findings to RUN/perf_advisor below LOGDIR, as Text and Scalar summaries."""
    from rich.text import Text

    from tb_perfadvisor.api.analyses import analyze_captures, nothing_found
    from tb_perfadvisor.engine.config import Config, read_config
    from tb_perfadvisor.engine.report_cache import open_report_cache
    from tb_perfadvisor.ingest.discovery import discover
    from tb_perfadvisor.report.report import Report

    try:
        from tb_perfadvisor.publish import publish as write_summaries
    except ImportError as error:
        raise UsageError(
            f"writing summaries needs TensorBoard, which cannot be imported ({error}).",
            hint="Run `pip install tensorboard`; `perfadvisor doctor` shows more.",
        ) from error
    settings = read_config(config) if config is not None else Config()
    settings.check()
    with show_progress(f"listing {logdir}"):
        listing = discover(logdir)
    captures = captures_of_runs(listing, run)
    if not captures:
        raise nothing_found(logdir, listing)
    reports: list[Report] = []
    with show_progress("reading", len(captures)) as progress:
        report_cache = open_report_cache(Report, settings, note)
        for result in analyze_captures(
            listing, captures, settings, progress.describe, report_cache=report_cache
        ):
            progress.advance()
            if isinstance(result, Report):
                reports.append(result)
            else:
                note(f"{result.path}: {result.reason}")
    if not reports:
        raise PerfAdvisorError("contains no readable profile.", where=logdir)
    note_incomplete_scan(logdir, listing)
    files = (file for capture in captures for file in capture.files)
    system_paths = {file.path: file.system_path for file in files}
    directories = write_summaries(reports, listing.root, system_paths, note)
    with printing():
        for directory in directories:
            terminal(highlight=False).print(Text(f"wrote {directory}/"), soft_wrap=True)
