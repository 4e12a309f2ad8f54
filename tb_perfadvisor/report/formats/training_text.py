"""The speed of training runs as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from tb_perfadvisor.plain_text import plain
from tb_perfadvisor.report.formats.wrapped_text import WrappedText
from tb_perfadvisor.training.pauses import Delay
from tb_perfadvisor.training.training import Rate, Recording, Training
from tb_perfadvisor.units import format_duration, format_elapsed, format_share

_REASONS = {
    "start": "Slow start",
    "restart": "Restart from an earlier step",
    "evaluation": "Evaluation",
    "recording": "Recording a profile",
    "pause": "Pause without a logged reason: a checkpoint, or input that did not arrive",
    "slower": "Steps became slower in the course of the run",
}


class TrainingText:
    """One run: its usual step, what it logged itself, and what cost time besides."""

    def __init__(self, run: str, training: Training) -> None:
        self._run = run
        self._training = training

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The parts, one below the other."""
        training = self._training
        unit = _unit(training)
        yield Text(plain(self._run), style="bold")
        yield WrappedText(
            f"{format_duration(training.step_ns)} per {unit} as a rule, without the profiler: "
            f"{unit}s {training.first_step:,} to {training.last_step:,} in "
            f"{format_elapsed(training.elapsed_ns)}."
        )
        for line in _logged(training):
            yield WrappedText(line)
        for recording in training.recordings:
            yield WrappedText(_of_recording(recording, training))
        if training.delays:
            yield Text()
            yield _delays(training)
        yield WrappedText(f"By the times at which {plain(training.tag)} was logged.", style="dim")


def print_trainings(runs: Sequence[tuple[str, Training]], console: Console) -> None:
    """Print runs one below the other."""
    for place, (run, training) in enumerate(runs):
        if place:
            console.print()
        console.print(TrainingText(run, training))


def _unit(training: Training) -> str:
    return "epoch" if training.is_per_epoch else "step"


def _logged(training: Training) -> Iterator[str]:
    if training.logged_step is not None:
        yield (
            f"The run itself logged {format_duration(training.logged_step.median_ns)} per step "
            f"({plain(training.logged_step.tag)})."
        )
    for what, rate in (("samples", training.samples), ("tokens", training.tokens)):
        if rate is not None:
            yield _of_rate(what, rate)


def _of_rate(what: str, rate: Rate) -> str:
    scope = {True: " per device", False: " on all devices", None: ""}[rate.per_device]
    return f"{rate.per_second:,.4g} {what} per second{scope} ({plain(rate.tag)})."


def _of_recording(recording: Recording, training: Training) -> str:
    name = f"The profile {plain(recording.session)}".rstrip()
    where = (
        "was recorded while nothing was logged"
        if recording.first_step is None
        else f"was recorded after {_unit(training)} {recording.first_step:,}"
    )
    if recording.profiled_step_ns is None or recording.slowdown is None:
        return f"{name} {where}."
    step = format_duration(recording.profiled_step_ns)
    if recording.slowdown < 0:
        return f"{name} {where}. Its steps take {step}, less than usual."
    slowdown = format_share(recording.slowdown)
    return f"{name} {where}. Its steps take {step}: recording made them {slowdown} slower."


def _delays(training: Training) -> RenderableType:
    table = Table(box=None, pad_edge=False)
    table.add_column("What cost time besides")
    table.add_column("Steps" if not training.is_per_epoch else "Epochs", justify="right")
    table.add_column("Times", justify="right")
    table.add_column("Cost", justify="right", no_wrap=True)
    table.add_column("of the run", justify="right", no_wrap=True)
    for delay in training.delays:
        table.add_row(
            WrappedText(_reason(delay)),
            f"{delay.first_step:,}–{delay.last_step:,}",
            f"{delay.count:,}",
            format_elapsed(delay.cost_ns),
            format_share(delay.cost_ns / max(training.elapsed_ns, 1)),
        )
    return table


def _reason(delay: Delay) -> str:
    regular = f", every {delay.every_steps:,} steps" if delay.every_steps else ""
    return _REASONS[delay.reason] + regular
