"""Comparisons as Markdown, for pull requests."""

from __future__ import annotations

from tb_perfadvisor.contract import model
from tb_perfadvisor.report.formats.comparison.wording import (
    ACHIEVED_MEANS,
    COLUMNS_MEAN,
    UNKNOWN,
    causes_to_show,
    change_text,
    finding_cells,
    interval_text,
    memory_cells,
    operation_cells,
    operation_tables,
    run_columns,
    signed,
    speed_up,
    speed_up_of,
    steps_text,
)
from tb_perfadvisor.report.formats.markdown import escape, grid
from tb_perfadvisor.units import format_duration

_MAX_OPERATIONS = 10


def render_markdown(document: model.ComparisonDocument) -> str:
    """The whole document."""
    blocks = [_comparison(comparison) for comparison in document.comparisons]
    if document.notes:
        blocks.append("\n".join(f"- {escape(note)}" for note in document.notes))
    return "\n\n".join(blocks) + "\n"


def _comparison(comparison: model.Comparison) -> str:
    blocks = [f"# Compared with {escape(comparison.base.name)}", *_runs(comparison)]
    blocks += [escape(sentence) for sentence in comparison.scaling_course]
    blocks += [_target(target, comparison.base) for target in comparison.targets]
    return "\n\n".join(blocks)


def _runs(comparison: model.Comparison) -> tuple[str, str]:
    runs = [comparison.base, *(target.run for target in comparison.targets)]
    columns = run_columns(runs)
    ups = ["base", *(speed_up(target) for target in comparison.targets)]
    rows = []
    for run, up in zip(runs, ups, strict=True):
        first, *others = (column.cell(run) or UNKNOWN for column in columns)
        name = escape(run.name) + (" (synthetic)" if run.is_synthetic else "")
        rows.append((name, first, up, *others))
    headings = [column.heading for column in columns]
    return grid(("Run", headings[0], "Speed-up", *headings[1:]), rows), COLUMNS_MEAN


def _target(target: model.ComparedTarget, base: model.ComparedRun) -> str:
    texts = (change_text(target), steps_text(target, base), interval_text(target))
    blocks = [
        f"## {escape(target.run.name)}",
        f"**{escape(target.headline)}**",
        escape(" · ".join(filter(None, texts))),
    ]
    if target.explanation:
        blocks.append(escape(target.explanation))
    if target.logged is not None:
        blocks.append(escape(" ".join(target.logged.sentences)))
    if target.warnings:
        blocks.append("\n".join(f"- ⚠ {escape(warning.message)}" for warning in target.warnings))
    if target.causes:
        blocks.append(_causes(target))
    if target.findings:
        rows = [finding_cells(finding) for finding in target.findings]
        blocks.append(grid(("Finding", "Predicted", "Range", "Achieved", "Now"), rows))
        blocks.append(ACHIEVED_MEANS)
        reasons = [
            f"- {finding.rule_id}: {escape(finding.reason)}"
            for finding in target.findings
            if finding.reason
        ]
        blocks += ["\n".join(reasons)] if reasons else []
    for heading, changes, meaning in operation_tables(target):
        blocks += [_operation_changes(heading, changes), meaning]
    if target.memory is not None and target.memory.rows:
        held = [memory_cells(row) for row in target.memory.rows[:_MAX_OPERATIONS]]
        lines = [(escape(line), *sizes) for line, *sizes in held]
        blocks.append(grid(("Allocated at the peak by", "Base", "Target", "Change"), lines))
    return "\n\n".join(block for block in blocks if block)


def _causes(target: model.ComparedTarget) -> str:
    change = target.change
    rows: list[tuple[str, ...]] = [
        (label, format_duration(before), format_duration(after), signed(after - before))
        for label, before, after in causes_to_show(target)
    ]
    rows.append(
        (
            "**Whole step**" if target.per == "step" else "**Whole recording**",
            *(
                f"**{format_duration(total_ns)}**"
                for total_ns in (change.base_ns, change.target_ns)
            ),
            f"**{signed(change.change_ns)}**",
        )
    )
    return grid(("Where the time goes", "Base", "Target", "Change"), rows)


def _operation_changes(heading: str, changes: model.OperationChanges) -> str:
    rows = []
    has_speed_ups = any(change.speed_up for change in changes.rows)
    for change in changes.rows[:_MAX_OPERATIONS]:
        name, *times = operation_cells(change)
        rows.append((escape(name), *times, *([speed_up_of(change)] if has_speed_ups else [])))
    more = len(changes.rows) - _MAX_OPERATIONS + changes.truncated
    headings = (heading, "Base", "Target", "Change", *(["Speed-up"] if has_speed_ups else []))
    table = grid(headings, rows)
    return f"{table}\n\n… and {more} more" if more > 0 else table
