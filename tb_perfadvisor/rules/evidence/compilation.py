"""What torch.compile compiles, and why: its own log, and inputs whose shapes change."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from tb_perfadvisor.patterns import regex
from tb_perfadvisor.rules.finding import Column, Table
from tb_perfadvisor.signals.core.operators import Shape
from tb_perfadvisor.signals.launch.compiled_regions import ChangingInput
from tb_perfadvisor.trace.compile_log import Compilation, CompileLog, GraphBreak
from tb_perfadvisor.units import format_duration

_RESUMED = regex(r"torch_dynamo_resume_in_(?P<function>.+)_at_(?P<line>\d+)$")
_MOST_ROWS = 100


def counted(count: int, noun: str) -> str:
    """As in `1 graph break`, `2 graph breaks`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def function_name(compilation: Compilation) -> str:
    """The user's name of a function: its part after a graph break has a name of the compiler's."""
    found = _RESUMED.match(compilation.function)
    return f"{found['function']}, from line {found['line']} on" if found else compilation.function


def distinct_breaks(log: CompileLog) -> list[tuple[GraphBreak, int]]:
    """Graph breaks of one line and reason together, with their number; in order of appearance."""
    counts = Counter((graph_break.place, graph_break.reason) for graph_break in log.breaks)
    first = {(each.place, each.reason): each for each in reversed(log.breaks)}
    return [(first[key], count) for key, count in counts.items()]


def breaks_table(log: CompileLog) -> Table:
    """Each line at which the compiler broke off, and why."""
    return Table(
        "Graph breaks, by torch.compile's log",
        (
            Column("place", "Line"),
            Column("reason", "Reason"),
            Column("function", "Function"),
            Column("hint", "What the compiler suggests"),
            Column("count", "Compilations", "count"),
        ),
        tuple(
            (
                str(each.place) if each.place else None,
                f"{each.reason} (the whole function stays uncompiled)"
                if each.is_uncompiled
                else each.reason,
                function_name(log.by_id[each.compile_id]) if each.compile_id in log.by_id else None,
                each.hint or each.explanation or None,
                count,
            )
            for each, count in distinct_breaks(log)[:_MOST_ROWS]
        ),
    )


def breaks_clause(log: CompileLog | None) -> str:
    """The first line that breaks and the reason, as a sentence; empty without breaks."""
    if log is None or not log.breaks:
        return ""
    first = log.breaks[0]
    where = f" at {first.place}" if first.place else ""
    return f" By torch.compile's log, the first is{where}: {first.reason.rstrip('.:')}."


def recompilations(log: CompileLog) -> list[Compilation]:
    """Compilations of functions that had been compiled before, the longest first."""
    found = [each for each in log.compilations if each.is_recompilation]
    return sorted(found, key=lambda each: -each.known_ns)


def recompilations_table(log: CompileLog) -> Table:
    """Each recompilation with the guard that failed."""
    return Table(
        "Recompilations, by torch.compile's log",
        (
            Column("function", "Function"),
            Column("place", "Where it begins"),
            Column("guard", "Guard that failed"),
            Column("result", "Result"),
            Column("duration_ns", "Compile time", "ns"),
        ),
        tuple(
            (
                function_name(each) or None,
                str(each.place) if each.place else None,
                each.failed_guards[0],
                each.failure or None,
                each.known_ns,
            )
            for each in recompilations(log)[:_MOST_ROWS]
        ),
    )


def guard_clause(log: CompileLog | None) -> str:
    """The guard that fails in the costliest recompilation, as a sentence; empty if unknown."""
    found = recompilations(log) if log is not None else []
    if not found:
        return ""
    where = f" ({found[0].place})" if found[0].place else ""
    return (
        f" By torch.compile's log, {function_name(found[0]) or 'a function'}{where} is compiled "
        f"again because this no longer holds: {found[0].failed_guards[0]}."
    )


def gave_up(log: CompileLog) -> list[Compilation]:
    """Functions that run eagerly from then on, because they were compiled too often."""
    return [each for each in log.compilations if each.reached_limit]


def frames_table(log: CompileLog) -> Table:
    """Compile time by function."""
    groups: dict[tuple[str, str], list[Compilation]] = {}
    for each in log.compilations:
        key = (function_name(each), str(each.place) if each.place else "")
        groups.setdefault(key, []).append(each)
    ordered = sorted(groups.items(), key=lambda item: -sum(each.known_ns for each in item[1]))
    return Table(
        "Compile time by function",
        (
            Column("function", "Function"),
            Column("place", "Where it begins"),
            Column("count", "Compilations", "count"),
            Column("backend_ns", "In the backend", "ns"),
            Column("backward_ns", "Backward", "ns"),
            Column("total_ns", "Total", "ns"),
        ),
        tuple(
            (
                function or None,
                place or None,
                len(members),
                _known_sum(each.backend_ns for each in members),
                _known_sum(each.backward_ns for each in members),
                sum(each.known_ns for each in members),
            )
            for (function, place), members in ordered[:_MOST_ROWS]
        ),
    )


def _known_sum(times_ns: Iterable[int | None]) -> int | None:
    """The sum of the known times; None if none is known."""
    known = [time_ns for time_ns in times_ns if time_ns is not None]
    return sum(known) if known else None


def phases_table(log: CompileLog) -> tuple[Table, ...]:
    """Compile time by phase of the compiler, if its phases were logged."""
    if not log.phases:
        return ()
    return (
        Table(
            "Compile time by phase, without the phases inside",
            (
                Column("name", "Phase"),
                Column("count", "Count", "count"),
                Column("ns", "Time", "ns"),
            ),
            tuple((each.name, each.count, each.self_ns) for each in log.phases[:_MOST_ROWS]),
        ),
    )


def caches_table(log: CompileLog) -> tuple[Table, ...]:
    """How often each cache of compiled code had what was needed."""
    if not log.caches:
        return ()
    return (
        Table(
            "Caches of compiled code",
            (
                Column("name", "Cache"),
                Column("hits", "Hits", "count"),
                Column("misses", "Misses", "count"),
                Column("bypasses", "Not used", "count"),
                Column("reason", "Why it was not used"),
            ),
            tuple(
                (each.name, each.hits, each.misses, each.bypasses, "; ".join(each.reasons) or None)
                for each in log.caches
            ),
        ),
    )


def log_in_short(log: CompileLog) -> str:
    """As in `9 compilations in 35.4 s, 5 graph breaks, 5 recompilations`."""
    return (
        f"{counted(len(log.compilations), 'compilation')} in {format_duration(log.known_ns)}, "
        f"{counted(len(log.breaks), 'graph break')}, "
        f"{counted(len(recompilations(log)), 'recompilation')}"
    )


_MOST_INPUTS, _MOST_SHAPES, _SHAPES_IN_SUMMARY = 20, 8, 3


def shapes_clause(inputs: Sequence[ChangingInput]) -> str:
    """The input with most shapes, as a clause."""
    if not inputs:
        return ""
    most = max(inputs, key=lambda changing: len(changing.shapes))
    first = ", ".join(_shape_text(shape) for shape in most.shapes[:_SHAPES_IN_SUMMARY])
    more = ", …" if len(most.shapes) > _SHAPES_IN_SUMMARY else ""
    return f"; an input comes in {len(most.shapes)} shapes ({first}{more})"


def _shape_text(shape: Shape) -> str:
    return " × ".join(map(str, shape)) or "scalar"


def changing_inputs_table(inputs: Sequence[ChangingInput]) -> tuple[Table, ...]:
    """Inputs of torch.compile whose shapes change, if shapes were recorded."""
    if not inputs:
        return ()
    return (
        Table(
            "Inputs of compiled code whose shapes change",
            (
                Column("frame", "Compiled frame"),
                Column("position", "Input"),
                Column("count", "Shapes", "count"),
                Column("shapes", "First shapes"),
            ),
            tuple(
                (
                    str(changing.frame),
                    str(changing.position),
                    len(changing.shapes),
                    ", ".join(map(_shape_text, changing.shapes[:_MOST_SHAPES])),
                )
                for changing in inputs[:_MOST_INPUTS]
            ),
        ),
    )
