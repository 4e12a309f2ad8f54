"""`perfadvisor publish`: findings for viewers that load no plugins."""

from __future__ import annotations

from pathlib import Path

import click

from tb_perfadvisor.cli.help import PATH, Argument, Command
from tb_perfadvisor.cli.selection import matching, note_gaps
from tb_perfadvisor.cli.terminal import note, printing, terminal, watching
from tb_perfadvisor.errors import PerfAdvisorError, UsageError


@click.command(cls=Command)
@click.argument("logdir", cls=Argument, help="A logdir, local or in a bucket.")
@click.option("--run", help="Only captures whose run matches this regular expression.")
@click.option("--config", type=PATH, help="Settings in TOML: rules, limits, bandwidth.")
def publish(logdir: str, run: str | None, config: Path | None) -> None:
    """Write the findings as Text and Scalar summaries, to RUN/perf_advisor below LOGDIR."""
    from rich.text import Text

    from tb_perfadvisor import api
    from tb_perfadvisor.engine.config import Config, read_config
    from tb_perfadvisor.ingest.discovery import discover
    from tb_perfadvisor.report import Report
    from tb_perfadvisor.report.report_cache import open_report_cache

    try:
        from tb_perfadvisor.publish import publish as write_summaries
    except ImportError as error:
        raise UsageError(
            f"summaries are written with TensorBoard, which cannot be imported ({error}).",
            hint="pip install tensorboard; `perfadvisor doctor` says more.",
        ) from error
    settings = read_config(config) if config is not None else Config()
    settings.rules()
    with watching(f"looking through {logdir}"):
        listing = discover(logdir)
    captures = matching(listing, run)
    if not captures:
        raise api.nothing_found(listing)
    reports: list[Report] = []
    report_cache = open_report_cache(Report, settings)
    with watching("reading", len(captures)) as watch:
        for result in api.analyze_all(
            listing, captures, settings, watch.tell, report_cache=report_cache
        ):
            watch.advance()
            if isinstance(result, Report):
                reports.append(result)
            else:
                note(f"{result.path}: {result.reason}")
    if not reports:
        raise PerfAdvisorError("holds no readable profile.", where=logdir)
    note_gaps(logdir, listing)
    directories = write_summaries(reports, listing.root)
    with printing():
        for directory in directories:
            terminal(highlight=False).print(Text(f"wrote {directory}/"), soft_wrap=True)
