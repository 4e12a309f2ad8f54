"""`perfadvisor history`: the recordings of a run as a time line."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tb_perfadvisor.cli.help import CONFIG, PATH, RUN, TIME_LIMIT, Argument, Command, choice_option
from tb_perfadvisor.cli.selection import inputs_of, limits_of, listing_of_runs
from tb_perfadvisor.cli.terminal import Format, Output, note, show_progress, write_result
from tb_perfadvisor.errors import PerfAdvisorError

if TYPE_CHECKING:
    from rich.console import Console

_EXAMPLES = """\
Examples:
  perfadvisor history runs/resnet50         # each session of the run
  perfadvisor history runs/v1 runs/v2 runs/v3"""


@click.command(cls=Command, epilog=_EXAMPLES)
@click.argument(
    "paths",
    cls=Argument,
    nargs=-1,
    required=True,
    help="A logdir or a run that was recorded several times; or recordings, the oldest first.",
)
@choice_option(Format, "--format", "-f", default=Format.TEXT, help="Output format.")
@click.option("--output", "-o", type=PATH, help="Write to this file instead of the terminal.")
@RUN
@CONFIG
@TIME_LIMIT
def history(
    paths: tuple[str, ...],
    format: Format,
    output: Path | None,
    run: str | None,
    config: Path | None,
    time_limit: float | None,
) -> None:
    """Show the recordings of a run over time: steps, findings, predicted and achieved savings."""
    from tb_perfadvisor.api.comparisons import facts_of_all, history_of, with_distinct_names
    from tb_perfadvisor.comparison.history import in_order_of_time, recordings_of
    from tb_perfadvisor.comparison.run_facts import RunFacts
    from tb_perfadvisor.engine.config import Config, read_config
    from tb_perfadvisor.engine.report_cache import open_report_cache
    from tb_perfadvisor.ingest.event_files.run_scalars import open_scalar_cache
    from tb_perfadvisor.ingest.event_files.runs import RunsByPlace, event_runs
    from tb_perfadvisor.report.formats.history import (
        history_document,
        print_history,
        render_history,
    )

    settings = read_config(config) if config is not None else Config()
    settings.check()
    listings = [listing_of_runs(path, run) for path in paths]
    destination = Output(output, inputs_of(listings, config=config))
    runs = recordings_of(listings)
    choices = [choice for recordings in runs.values() for choice in recordings]
    scalars = open_scalar_cache()
    notes: list[str] = []
    histories = []
    with show_progress("reading", len(choices)) as progress:
        results = facts_of_all(
            choices,
            settings,
            progress.describe,
            report_cache=open_report_cache(RunFacts, settings, note),
            time_limit_s=limits_of(time_limit).time_s,
        )
        for name, recordings in runs.items():
            found, places = [], []
            for choice in recordings:
                result = next(results)
                progress.advance()
                if isinstance(result, PerfAdvisorError):
                    notes.append(str(result))
                else:
                    found.append(result)
                    places.append(choice)
            if len(found) < 2:
                continue
            # Several paths are in the order of the user.
            order = in_order_of_time(found) if len(paths) == 1 else range(len(found))
            found, places = [found[at] for at in order], [places[at] for at in order]
            histories.append(
                history_of(
                    name,
                    with_distinct_names(found, [choice.place for choice in places]),
                    [choice.capture.run for choice in places],
                    [
                        RunsByPlace(event_runs(choice.listing)).candidates(choice.capture.run)
                        for choice in places
                    ],
                    progress.describe,
                    scalars,
                )
            )
    for message in notes:
        note(message)
    if not histories:
        raise PerfAdvisorError("fewer than two recordings can be read.", where=paths[0])
    content = history_document(histories, notes)

    def print_text(console: Console) -> None:
        print_history(content, console)

    write_result(partial(render_history, content), print_text, format, destination)
