"""`perfadvisor training`: the speed of whole runs, by the scalars that they logged."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tb_perfadvisor.cli.help import CONFIG, PRICE, TOTAL_STEPS, Argument, Command, choice_option
from tb_perfadvisor.cli.selection import with_run_options
from tb_perfadvisor.cli.terminal import TextOrJson, note, printing, show_progress, terminal
from tb_perfadvisor.errors import PerfAdvisorError

if TYPE_CHECKING:
    from tb_perfadvisor.api.training import DescribedRun

_EXAMPLES = """\
Examples:
  perfadvisor training runs/
  perfadvisor training runs/resnet50 --price-per-device-hour 2.5 --total-steps 100000
  perfadvisor training runs/resnet50 --format json"""


@click.command(cls=Command, epilog=_EXAMPLES)
@click.argument("path", cls=Argument, help="A logdir or a run.")
@choice_option(TextOrJson, "--format", "-f", default=TextOrJson.TEXT, help="Output format.")
@PRICE
@TOTAL_STEPS
@CONFIG
def training(
    path: str,
    format: TextOrJson,
    price_per_device_hour: float | None,
    total_steps: int | None,
    config: Path | None,
) -> None:
    """Show how fast runs trained from start to end, by the scalars that they logged."""
    from tb_perfadvisor.api.training import describe_runs
    from tb_perfadvisor.engine.config import Config, read_config
    from tb_perfadvisor.engine.report_cache import open_report_cache
    from tb_perfadvisor.report.report import Report

    settings = read_config(config) if config is not None else Config()
    settings = with_run_options(settings, price_per_device_hour, total_steps)
    with show_progress("reading", 1) as progress:
        found = list(
            describe_runs(
                path,
                progress.describe,
                config=settings,
                report_cache=open_report_cache(Report, settings, note),
            )
        )
    runs = [run for run in found if run.training is not None]
    for run in found:
        for rejected in run.unread:
            note(f"the profile {rejected.path} was not read: {rejected.reason}")
    silent = [run.run for run in found if run.training is None]
    if silent:
        note(f"without a scalar that was logged at two steps: {', '.join(silent)}.")
    if not runs:
        raise PerfAdvisorError("no run logged a scalar at two different steps.")
    with printing():
        if format is TextOrJson.JSON:
            import msgspec

            from tb_perfadvisor.plain_text import printable_json

            content = [_as_json(run) for run in runs]
            text = msgspec.json.format(msgspec.json.encode(content)).decode()
            sys.stdout.write(printable_json(text) + "\n")
        else:
            from tb_perfadvisor.report.formats.training_text import print_trainings

            print_trainings(
                [(run.run, run.training, run.reports) for run in runs if run.training is not None],
                terminal(highlight=False),
            )


def _as_json(run: DescribedRun) -> dict[str, object]:
    import msgspec

    about = {report.id: report.whole_run for report in run.reports if report.whole_run is not None}
    return {
        "run": run.run,
        **msgspec.to_builtins(run.training),
        "profiles": msgspec.to_builtins(about),
        "unread": msgspec.to_builtins(run.unread),
    }
