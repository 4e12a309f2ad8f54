"""Wording and formatting of comparisons, shared by all text formats."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from msgspec import Struct

from tb_perfadvisor.contract import model
from tb_perfadvisor.plain_text import plain
from tb_perfadvisor.report.formats.markdown import escape, grid
from tb_perfadvisor.trace.names import unqualified
from tb_perfadvisor.units import (
    format_bytes,
    format_duration,
    format_duration_range,
    format_share,
)

UNKNOWN = "–"
SMALL_SHARE = 0.001
"""Share of the base's time. Causes that changed by less are shown as one."""

ACHIEVED_MEANS = "Achieved: time that disappeared where the finding saw it, for any reason."
MODULES_MEAN = (
    "Own time: without the modules inside. What runs at the same time shares it, so the rows add "
    "up to no more than the whole. * stands for the numbers of several modules."
)
VARIANTS_MEAN = "~ a different variant in the target: other sizes, dtypes or numbering"


def signed(change_ns: int) -> str:
    """A change with its sign: `−57.5 ms`, `+8.11 ms`, `0 ns`."""
    sign = "+" if change_ns > 0 else "−" if change_ns < 0 else ""
    return sign + format_duration(abs(change_ns))


def less_or_more(change_ns: int) -> str:
    """A change in words: `57.5 ms less`."""
    return f"{format_duration(abs(change_ns))} {'more' if change_ns > 0 else 'less'}"


def change_text(target: model.ComparedTarget) -> str:
    """The change of the mean step; empty if there are no steps to compare."""
    change = target.change
    if target.verdict in ("no_steps", "not_comparable", "memory"):
        return ""
    if change.change_share is None:
        return "the base contains no work"
    if not change.change_ns:
        return "as long as before"
    return f"{less_or_more(change.change_ns)} per step ({format_share(abs(change.change_share))})"


def interval_text(target: model.ComparedTarget) -> str:
    """How certain the change of the step is; empty if that is unknown."""
    change = target.change
    if change.low_ns is None or change.high_ns is None:
        return ""
    between = _between(change.low_ns, change.high_ns)
    return f"{between}, with {change.confidence * 100:.0f} % confidence"


def undecided_text(target: model.ComparedTarget) -> str:
    """Why the recordings do not tell whether a run is slower, and what would."""
    change = target.change
    is_of_speed = target.verdict in ("faster", "slower", "inconclusive")
    if not is_of_speed or change.low_ns is None or change.high_ns is None:
        return f"{target.headline}."
    return (
        f"A step takes {_between(change.low_ns, change.high_ns)}, with "
        f"{change.confidence * 100:.0f} % confidence; the mean takes "
        f"{less_or_more(change.change_ns)}. Record more steps."
    )


def steps_text(target: model.ComparedTarget, base: model.ComparedRun) -> str:
    """The numbers of steps compared; empty without steps, which a warning mentions."""
    if target.per == "window":
        return ""
    return f"{target.run.steps} step{'s' if target.run.steps > 1 else ''} vs. {base.steps}"


def _between(low_ns: int, high_ns: int) -> str:
    near, far = (less_or_more(end_ns) for end_ns in sorted((low_ns, high_ns), key=abs))
    if near == far:
        return near
    if low_ns < 0 < high_ns:
        return f"{less_or_more(low_ns)} to {less_or_more(high_ns)}"
    return f"{near.rpartition(' ')[0]} to {far}"


def causes_to_show(target: model.ComparedTarget) -> list[tuple[str, int, int]]:
    """Label, base time and target time of each cause; those that hardly changed as one."""
    least_ns = SMALL_SHARE * target.change.base_ns
    large = [cause for cause in target.causes if abs(cause.change_ns) >= least_ns] or target.causes
    small = target.causes[len(large) :]
    rows = [(cause.label, cause.base_ns, cause.target_ns) for cause in large]
    if len(small) == 1:
        rows.append((small[0].label, small[0].base_ns, small[0].target_ns))
    elif small:
        rows.append(
            (
                "Everything else",
                sum(cause.base_ns for cause in small),
                sum(cause.target_ns for cause in small),
            )
        )
    return rows


def finding_cells(finding: model.FindingChange) -> tuple[str, str, str, str, str]:
    """Rule, predicted saving, its range, achieved saving, and current state."""
    predicted, remaining = finding.predicted, finding.remaining
    expected = achieved = span = UNKNOWN
    if predicted is not None:
        expected = format_duration(predicted.expected_ns)
        if predicted.low_ns != predicted.high_ns:
            span = format_duration_range(predicted.low_ns, predicted.high_ns)
        if finding.refines is not None:
            achieved = "counted above"
        if finding.achieved_ns is not None:
            achieved = format_duration(finding.achieved_ns).replace("-", "−")
            if predicted.expected_ns and finding.achieved_ns > 0:
                achieved += f" ({finding.achieved_ns / predicted.expected_ns * 100:.0f} %)"
    left = format_duration(remaining.expected_ns) if remaining is not None else ""
    state = {
        "fixed": finding.outcome.lower(),
        "unknown": f"{left} left" if left else "unknown",
        "new": f"new: {left}" if left else "new",
        "changed": f"{left} left" if left else "changed",
        "unchanged": f"{left} left" if left else "unchanged",
    }[finding.status]
    return finding.rule_id, expected, span, achieved, state


def operation_tables(
    target: model.ComparedTarget,
) -> Iterator[tuple[str, model.OperationChanges, str]]:
    """Heading, rows and meaning of each table of modules, kernels and operators that has rows."""
    tables = (
        ("Module, own device time", "Module, own host time", target.modules, MODULES_MEAN),
        ("Kernel", "Kernel", target.kernels, ""),
        ("Operator, device time", "Operator, own host time", target.operators, ""),
    )
    for on_device, on_host, changes, meaning in tables:
        if changes is not None and changes.rows:
            yield on_device if changes.is_device_time else on_host, changes, meaning


def speed_up_of(change: model.OperationChange) -> str:
    """The base's time divided by the target's, with `≈` if the change is not clear."""
    if change.speed_up is None:
        return UNKNOWN
    return f"{'' if change.is_certain else '≈ '}{change.speed_up:.2f}×"


def operation_cells(change: model.OperationChange) -> tuple[str, str, str, str]:
    """Name, base time, target time and change of a kernel or operator."""
    name = unqualified(change.name) if change.family is not None else _without_type(change.name)
    return (
        ("~ " if change.target_name is not None else "") + plain(name),
        "new" if change.base_ns is None else format_duration(change.base_ns),
        "gone" if change.target_ns is None else format_duration(change.target_ns),
        signed(change.change_ns),
    )


def _without_type(name: str) -> str:
    """TensorFlow's `layer/Relu_1:Relu` without the type, which the name already contains."""
    path, _, kind = name.rpartition(":")
    last = path.rpartition("/")[2]
    return path if kind and last.startswith(kind) else name


def shortened(name: str, width: int) -> str:
    """A name cut to a width: a path keeps its end, a template its beginning."""
    if len(name) <= width:
        return name
    return f"…{name[1 - width :]}" if "/" in name else f"{name[: width - 1]}…"


class Column(Struct, frozen=True):
    """A column of the table of runs."""

    heading: str
    cell: Callable[[model.ComparedRun], str | None]
    """None when unknown."""


def _share(field: str) -> Callable[[model.ComparedRun], str | None]:
    def cell(run: model.ComparedRun) -> str | None:
        value = getattr(run, field)
        return None if value is None else format_share(value)

    return cell


_DEVICES = Column("Devices", lambda run: None if run.devices is None else f"{run.devices:,}")
_RANKS = Column("Ranks", _DEVICES.cell)
_COLUMNS = (
    Column(
        "Step", lambda run: None if run.step_time_ns is None else format_duration(run.step_time_ns)
    ),
    _DEVICES,
    Column(
        "Recorded",
        lambda run: None if run.steps or not run.window_ns else format_duration(run.window_ns),
    ),
    Column("Input wait", _share("input_wait_share")),
    Column("Compute", _share("device_compute_share")),
    Column("MFU", _share("mfu")),
    Column(
        "Tokens/s", lambda run: None if run.tokens_per_s is None else f"{run.tokens_per_s:,.0f}"
    ),
    Column(
        "Samples/s", lambda run: None if run.samples_per_s is None else f"{run.samples_per_s:,.0f}"
    ),
    Column(
        "Memory",
        lambda run: (
            None if run.peak_allocated_bytes is None else format_bytes(run.peak_allocated_bytes)
        ),
    ),
    Column("16-bit", _share("sixteen_bit_share")),
    Column("Comm.", _share("exposed_communication_share")),
    Column("Step gaps", _share("between_steps_share")),
    Column("Busy", _share("device_busy_share")),
)
COLUMNS_MEAN = (
    "Input wait, exposed communication, step gaps, device compute and device busy are shares of "
    "the step; 16-bit is a share of compute. Tokens/s and samples/s are per rank."
)


def run_columns(runs: Sequence[model.ComparedRun]) -> list[Column]:
    """The columns with at least one known value, the most important first.

    Devices, or ranks on the CPU, are counted only if their numbers differ. If nothing is known,
    only the step has a column.
    """
    is_scaled = len({run.devices for run in runs}) > 1
    counted = _RANKS if all(run.device is None for run in runs) else _DEVICES
    known = [
        counted if column is _DEVICES else column
        for column in _COLUMNS
        if any(column.cell(run) for run in runs) and (is_scaled or column is not _DEVICES)
    ]
    return known or [_COLUMNS[0]]


def memory_cells(row: model.LineChange) -> tuple[str, str, str, str]:
    """Line, base, target and change of what a line of the program holds at the peak."""
    sizes = (
        UNKNOWN if size is None else format_bytes(size)
        for size in (row.base_bytes, row.target_bytes)
    )
    before, after = sizes
    sign = "+" if row.change_bytes > 0 else "−"
    line = row.line or "before the history, or an unknown line"
    return line, before, after, f"{sign}{format_bytes(abs(row.change_bytes))}"


def speed_up(target: model.ComparedTarget) -> str:
    """The base's time divided by the target's, with `≈` if the change is not clear.

    With another number of devices: the target's throughput divided by the base's.
    """
    if target.scaling is not None:
        return f"{target.scaling.throughput_ratio:.2f}×"
    if target.change.speed_up is None:
        return UNKNOWN
    approximately = "" if target.verdict in ("faster", "slower") else "≈ "
    return f"{approximately}{target.change.speed_up:.2f}×"


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
