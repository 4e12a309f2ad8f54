"""Comparisons for a terminal."""

from __future__ import annotations

import io
from collections.abc import Sequence

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from tb_perfadvisor.contract import model
from tb_perfadvisor.plain_text import plain
from tb_perfadvisor.report.formats.comparison.wording import (
    ACHIEVED_MEANS,
    UNKNOWN,
    VARIANTS_MEAN,
    Column,
    causes_to_show,
    change_text,
    finding_cells,
    interval_text,
    memory_cells,
    operation_cells,
    operation_tables,
    run_columns,
    shortened,
    signed,
    speed_up,
    speed_up_of,
    steps_text,
)
from tb_perfadvisor.report.formats.text import WIDTH, WrappedText
from tb_perfadvisor.units import format_duration

_MAX_OPERATIONS = 8
_GAP = 2
_NAME_WIDTH = 26
"""The most space that a run's name takes from the numbers next to it."""
_NUMBERS_WIDTH = 64
"""Width of a table of causes without its bars."""
_BARS = (8, 32)
_TIMES_WIDTH = 32
"""Width of three durations next to the name of a kernel."""
_VERDICT_STYLE = {"faster": "bold green", "slower": "bold red"}
_LESS, _MORE = "green", "red"


def render_text(document: model.ComparisonDocument) -> str:
    """The whole document as plain text, without colors."""
    buffer = io.StringIO()
    print_comparisons(document, Console(file=buffer, width=WIDTH, no_color=True, highlight=False))
    return buffer.getvalue()


def print_comparisons(document: model.ComparisonDocument, console: Console) -> None:
    """Print to a console, in color where it has any."""
    for index, comparison in enumerate(document.comparisons):
        if index:
            console.rule(style="dim")
        console.print(_comparison(comparison, console.width))


def _comparison(comparison: model.Comparison, width: int) -> RenderableType:
    parts: list[RenderableType] = [_runs(comparison, width)]
    parts += [WrappedText(sentence) for sentence in comparison.scaling_course]
    for target in comparison.targets:
        parts += [Text(), _target(target, comparison.base, width)]
    return Group(*parts)


def _runs(comparison: model.Comparison, width: int) -> RenderableType:
    """One line per run, with as many numbers as fit."""
    runs = [comparison.base, *(target.run for target in comparison.targets)]
    longest = max(len(run.name) for run in runs)
    columns = _fitting(run_columns(runs), runs, width - min(longest, _NAME_WIDTH))
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="dim")
    table.add_column("Run", overflow="fold")
    for column in columns:
        table.add_column(column.heading, justify="right", no_wrap=True)
        if column is columns[0]:
            table.add_column("Speed-up", justify="right", no_wrap=True)
    ups = [WrappedText("base", style="dim")]
    ups += [
        WrappedText(speed_up(target), style=_VERDICT_STYLE.get(target.verdict, ""))
        for target in comparison.targets
    ]
    for run, up in zip(runs, ups, strict=True):
        first, *others = (WrappedText(column.cell(run) or UNKNOWN) for column in columns)
        table.add_row(WrappedText(plain(run.name), style="bold cyan"), first, up, *others)
    synthetic = ", ".join(plain(run.name) for run in runs if run.is_synthetic)
    return (
        Group(table, WrappedText(f"Synthetic, not recorded: {synthetic}", style="dim"))
        if synthetic
        else table
    )


def _fitting(columns: list[Column], runs: Sequence[model.ComparedRun], room: int) -> list[Column]:
    """The first columns that fit next to the names and the speed-up."""
    room -= len("Speed-up") + 2 * _GAP
    fitting: list[Column] = []
    for column in columns:
        cells = [column.heading, *(column.cell(run) or UNKNOWN for run in runs)]
        room -= max(map(len, cells)) + _GAP
        if room < 0 and fitting:
            break
        fitting.append(column)
    return fitting


def _target(target: model.ComparedTarget, base: model.ComparedRun, width: int) -> RenderableType:
    parts: list[RenderableType] = [
        Text.assemble((plain(target.run.name), "bold cyan"), (f" vs. {plain(base.name)}", "cyan")),
        WrappedText(target.headline, style=_VERDICT_STYLE.get(target.verdict, "bold")),
        *(
            WrappedText(line, style="dim")
            for line in (
                change_text(target),
                ", ".join(filter(None, (steps_text(target, base), interval_text(target)))),
            )
            if line
        ),
        *(WrappedText(text) for text in (target.explanation,) if text),
        *(
            WrappedText(line)
            for line in (target.logged.sentences if target.logged is not None else ())
        ),
        *(
            WrappedText(f"! {plain(warning.message)}", style="yellow")
            for warning in target.warnings
        ),
    ]
    if target.causes:
        parts += [Text(), _causes(target, width)]
    if target.findings:
        parts += [Text(), _findings(target)]
    for heading, changes, meaning in operation_tables(target):
        parts += [Text(), _operation_changes(heading, changes, width)]
        parts += [WrappedText(meaning, style="dim")] if meaning else []
    if target.memory is not None and target.memory.rows:
        parts += [Text(), _memory(target.memory)]
    return Group(*parts)


def _memory(changes: model.MemoryChanges) -> Table:
    """What each line of the program holds at the peak, and how that changed."""
    table = _grid("Allocated at the peak by", "Base", "Target", "Change")
    for row in changes.rows[:_MAX_OPERATIONS]:
        line, *sizes = memory_cells(row)
        table.add_row(WrappedText(plain(line)), *map(WrappedText, sizes))
    return table


def _grid(*headings: str) -> Table:
    """A table whose first column is text and whose others are numbers."""
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="dim")
    for heading in headings:
        is_text = heading == headings[0]
        table.add_column(heading, justify="left" if is_text else "right", no_wrap=True)
    return table


def _causes(target: model.ComparedTarget, width: int) -> RenderableType:
    rows = causes_to_show(target)
    whole = "Whole step" if target.per == "step" else "Whole recording"
    table = _grid("Where the time goes", "Base", "Target", "Change")
    table.add_column("")
    changes = [after - before for _, before, after in rows]
    bars = _bars(changes, max(_BARS[0], min(_BARS[1], width - _NUMBERS_WIDTH)))
    for (label, before, after), difference, bar in zip(rows, changes, bars, strict=True):
        table.add_row(
            WrappedText(label),
            WrappedText(format_duration(before)),
            WrappedText(format_duration(after)),
            WrappedText(signed(difference)),
            bar,
        )
    change = target.change
    table.add_row(
        WrappedText(whole, style="bold"),
        WrappedText(format_duration(change.base_ns), style="bold"),
        WrappedText(format_duration(change.target_ns), style="bold"),
        WrappedText(signed(change.change_ns), style="bold"),
        Text(),
    )
    return table


def _bars(changes: Sequence[int], width: int) -> list[Text]:
    """Bars on both sides of an axis: less on the left, more on the right."""
    less, more = (max([0, *(sign * change for change in changes)]) for sign in (-1, 1))
    if not less + more:
        return [Text() for _ in changes]
    scale = width / (less + more)
    axis = round(less * scale)
    bars = []
    for change in changes:
        bar = "█" * round(abs(change) * scale)
        bars.append(
            Text.assemble((bar.rjust(axis), _LESS), ("│", "dim"))
            if change < 0
            else Text.assemble(" " * axis, ("│", "dim"), (bar, _MORE))
        )
    return bars


def _findings(target: model.ComparedTarget) -> RenderableType:
    findings = target.findings
    table = _grid("Finding", "Predicted", "Range", "Achieved", "Now")
    for finding in findings:
        *cells, now = finding_cells(finding)
        style = {"fixed": "green", "new": "red", "unknown": "yellow"}.get(finding.status, "")
        if finding.outcome == "Gone":
            style = ""
        table.add_row(*map(WrappedText, cells), WrappedText(now, style=style))
    reasons = [
        WrappedText(f"{finding.rule_id}: {plain(finding.reason)}", style="dim")
        for finding in findings
        if finding.reason
    ]
    means = (
        [WrappedText(ACHIEVED_MEANS, style="dim")]
        if any(finding.predicted for finding in findings)
        else []
    )
    return Group(table, *means, *reasons)


def _operation_changes(heading: str, changes: model.OperationChanges, width: int) -> RenderableType:
    has_speed_ups = any(change.speed_up for change in changes.rows)
    table = _grid(heading, "Base", "Target", "Change", *(["Speed-up"] if has_speed_ups else []))
    room = width - _TIMES_WIDTH - (len("Speed-up") + _GAP) * has_speed_ups
    for change in changes.rows[:_MAX_OPERATIONS]:
        name, before, after, difference = operation_cells(change)
        style = "" if change.is_certain is False else _LESS if change.change_ns < 0 else _MORE
        table.add_row(
            WrappedText(shortened(name, room)),
            WrappedText(before),
            WrappedText(after),
            WrappedText(difference, style=style),
            *([WrappedText(speed_up_of(change))] if has_speed_ups else []),
        )
    below = []
    more = len(changes.rows) - _MAX_OPERATIONS + changes.truncated
    if more > 0:
        below.append(f"… and {more} more")
    if any(change.target_name is not None for change in changes.rows[:_MAX_OPERATIONS]):
        below.append(VARIANTS_MEAN)
    return Group(table, *(WrappedText(line, style="dim") for line in below))
