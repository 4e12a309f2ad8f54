"""The speed of training runs as text."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from tb_perfadvisor.contract.model import Report
from tb_perfadvisor.plain_text import plain
from tb_perfadvisor.report.formats.text import WrappedText
from tb_perfadvisor.training.training import (
    Training,
    delay_label,
    facts_of,
    headline_of,
    recording_sentence,
)
from tb_perfadvisor.units import format_elapsed, format_share


class TrainingText:
    """One run: its usual step, what it logged itself, and what else took time."""

    def __init__(self, run: str, training: Training, reports: Sequence[Report]) -> None:
        self._run = run
        self._training = training
        self._about = {report.id: report.whole_run for report in reports}

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The parts, one below the other."""
        training = self._training
        yield Text(plain(self._run), style="bold")
        yield WrappedText(headline_of(training) + ".")
        for line in facts_of(training):
            yield WrappedText(line)
        for recording in training.recordings:
            name = f"Profile {plain(recording.session)}".rstrip()
            yield WrappedText(f"{name}: {recording_sentence(recording, training)}")
            about = self._about.get(recording.capture_id)
            for line in about.sentences[1:] if about is not None else ():
                yield Padding(WrappedText(line), (0, 0, 0, 2))
        if training.delays:
            yield Text()
            yield _delays(training)


def print_trainings(
    runs: Sequence[tuple[str, Training, Sequence[Report]]], console: Console
) -> None:
    """Print runs one below the other, each with the reports of its profiles."""
    for place, run in enumerate(runs):
        if place:
            console.print()
        console.print(TrainingText(*run))


def _delays(training: Training) -> RenderableType:
    table = Table(box=None, pad_edge=False)
    table.add_column("What else took time")
    table.add_column("Steps" if not training.is_per_epoch else "Epochs", justify="right")
    table.add_column("Times", justify="right")
    table.add_column("Cost", justify="right", no_wrap=True)
    table.add_column("of the run", justify="right", no_wrap=True)
    for delay in training.delays:
        table.add_row(
            WrappedText(delay_label(delay, is_per_epoch=training.is_per_epoch)),
            f"{delay.first_step:,}–{delay.last_step:,}",
            f"{delay.count:,}",
            format_elapsed(delay.cost_ns),
            format_share(delay.cost_ns / max(training.elapsed_ns, 1)),
        )
    return table
