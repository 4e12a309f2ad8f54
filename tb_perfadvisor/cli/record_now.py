"""`perfadvisor record-now`: asks running programs to record their next steps."""

from __future__ import annotations

import time
from pathlib import Path

import click

from tb_perfadvisor.cli.help import Argument, Command
from tb_perfadvisor.cli.terminal import note
from tb_perfadvisor.errors import PerfAdvisorError
from tb_perfadvisor.plain_text import shell_path

_MOST_S = 60.0
_LOOK_EVERY_S = 0.2


@click.command("record-now", cls=Command)
@click.argument(
    "logdir",
    cls=Argument,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="A log directory, or the directory of a run.",
)
def record_now(logdir: Path) -> None:
    """Ask running programs to record their next steps.

    They are the programs below LOGDIR that were started with perfadvisor run, or that call
    continuous(), and that make steps. Each records once a minute at most.
    """
    from tb_perfadvisor.instrument.record_requests import REQUEST, ask, programs_below

    programs = programs_below(logdir)
    answers = {path: ask(path) for path in programs}
    asked = [path for path, answer in answers.items() if answer != "cannot be asked"]
    if not asked:
        raise PerfAdvisorError(
            "no program that runs there can be asked.",
            where=str(logdir),
            hint="Start it with perfadvisor run, or call continuous() in its loop.",
        )
    for path in asked:
        note(f"asked the program of {path}.")
    waiting, until_s = asked, time.monotonic() + _MOST_S
    while waiting and time.monotonic() < until_s:
        time.sleep(_LOOK_EVERY_S)
        waiting = [path for path in waiting if (path / REQUEST).exists()]
    for path in asked:
        if path in waiting:
            note(f"the program of {path} records later: it makes no step, or has just recorded.")
        else:
            note(f"{path} is being recorded. Next: perfadvisor analyze {shell_path(str(path))}")
