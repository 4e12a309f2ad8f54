"""`perfadvisor training`: the speed of whole runs, by the scalars that they logged."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from tb_perfadvisor.cli.help import Argument, Command, choice_option
from tb_perfadvisor.cli.terminal import TextOrJson, note, printing, show_progress, terminal
from tb_perfadvisor.errors import PerfAdvisorError

if TYPE_CHECKING:
    from tb_perfadvisor.training.training import Training

_EXAMPLES = """\
Examples:
  perfadvisor training runs/
  perfadvisor training runs/resnet50 --format json"""


@click.command(cls=Command, epilog=_EXAMPLES)
@click.argument("path", cls=Argument, help="A logdir or a run.")
@choice_option(TextOrJson, "--format", "-f", default=TextOrJson.TEXT, help="Output format.")
def training(path: str, format: TextOrJson) -> None:
    """Show how fast runs trained from start to end, by the scalars that they logged."""
    from tb_perfadvisor.api import describe_runs

    runs: list[tuple[str, Training]] = []
    silent: list[str] = []
    with show_progress("reading", 1) as progress:
        for run, found in describe_runs(path, progress.describe):
            if found is None:
                silent.append(run)
            else:
                runs.append((run, found))
    if silent:
        note(f"without a scalar that was logged at two steps: {', '.join(silent)}.")
    if not runs:
        raise PerfAdvisorError("no run logged a scalar at two different steps.")
    with printing():
        if format is TextOrJson.JSON:
            import msgspec

            from tb_perfadvisor.plain_text import printable_json

            content = [{"run": run, **msgspec.to_builtins(found)} for run, found in runs]
            text = msgspec.json.format(msgspec.json.encode(content)).decode()
            sys.stdout.write(printable_json(text) + "\n")
        else:
            from tb_perfadvisor.report.formats.training_text import print_trainings

            print_trainings(runs, terminal(highlight=False))
