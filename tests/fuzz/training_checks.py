"""What holds for every run's event files: a description that adds up, or an error for the user."""

from __future__ import annotations

import io
import json
from pathlib import Path

import msgspec
from rich.console import Console

from tb_perfadvisor.api.training import describe_runs
from tb_perfadvisor.comparison.whole_run import make_training_view
from tb_perfadvisor.errors import PerfAdvisorError
from tb_perfadvisor.ingest.discovery import discover
from tb_perfadvisor.ingest.event_files.run_scalars import read_run
from tb_perfadvisor.ingest.event_files.runs import event_runs
from tb_perfadvisor.report.formats.training_text import print_trainings
from tb_perfadvisor.training.training import Training
from tests.fuzz.command_checks import check_tools, no_logged_bugs
from tests.fuzz.invariants import BrokenError, check_json, check_numbers, check_text, raise_bugs

_ROUNDING_NS = 10


def check_training(root: Path, *, exports: bool) -> int:
    """Describe the runs of a log directory and check what is said of them.

    Args:
        root: The log directory.
        exports: Whether to write and check the outputs, too.

    Returns:
        The number of runs that are described.

    Raises:
        BrokenError: If something does not hold.
        Exception: Whatever was raised, unless it is an error for the user.
    """
    try:
        with no_logged_bugs():
            runs = [
                (described.run, described.training, described.reports)
                for described in describe_runs(root)
                if described.training is not None
            ]
    except PerfAdvisorError as error:
        raise_bugs(error)
        return 0
    for _, training, _ in runs:
        _check(training)
    if exports:
        from_cache = [described.training for described in describe_runs(root)]
        if [each for each in from_cache if each is not None] != [each for _, each, _ in runs]:
            raise BrokenError("the cache of scalars changes what is said")
        check_json(json.dumps([msgspec.to_builtins(training) for _, training, _ in runs]))
        reports = {name: of_run for name, _, of_run in runs}
        for name, event_run in event_runs(discover(root)).items():
            view = make_training_view(name, read_run(event_run), reports.get(name, ()))
            check_json(msgspec.json.encode(view).decode())
        printed = io.StringIO()
        print_trainings(runs, Console(file=printed, width=100))
        check_text(printed.getvalue(), "text")
        check_tools(root)
    return len(runs)


def _check(training: Training) -> None:
    check_numbers(training)
    steps_ns = [regime.step_ns for regime in training.regimes]
    if not steps_ns or min(steps_ns) < 0 or training.elapsed_ns < 0:
        raise BrokenError(f"{steps_ns} ns per step, {training.elapsed_ns} ns in all")
    if training.first_step > training.last_step:
        raise BrokenError(f"steps {training.first_step} to {training.last_step}")
    for delay in training.delays:
        if not 0 <= delay.cost_ns <= training.elapsed_ns + _ROUNDING_NS:
            raise BrokenError(f"{delay.reason} costs {delay.cost_ns} of {training.elapsed_ns} ns")
