"""Runs of XLA programs on the CPU, and the calls that launched them, worked out one by one."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from tb_perfadvisor.signals.core.device import device_timeline
from tb_perfadvisor.signals.core.steps.launched_work import (
    calls_by_function,
    cpu_runs,
    function_of,
    launched_work,
    program_name,
    program_of,
    runs_of_function,
    top_level_calls,
)
from tb_perfadvisor.testing import TraceBuilder, symbols
from tb_perfadvisor.trace import EventKind, Trace, TrackKind
from tests.support.night import examples

randoms = st.integers(0, 2**32).map(Random)


class Operation(NamedTuple):
    """One execution of an operation of a program."""

    name: str
    module: str
    start: int
    end: int


def cpu_trace(calls: list[tuple[str, int, int, str]], operations: list[Operation]) -> Trace:
    """Calls of functions on threads, and operations on the threads of a pool."""
    builder = TraceBuilder("jax").annotation("first", 0, 1, thread="python")
    for name, start, end, thread in calls:
        kind = EventKind.COMPILE if name == "compile" else EventKind.ANNOTATION
        builder.host(kind, name, start, end, thread=thread)
    for each in operations:
        symbol = symbols.Symbol(
            EventKind.OPERATOR, each.name, hlo={"module": each.module, "category": "x"}
        )
        builder.add(symbol, each.start, each.end, thread=f"pool {each.start % 2}")
    return builder.build()


def random_runs(random: Random, modules: tuple[str, ...]) -> list[Operation]:
    """Runs one after the other; in each, some operations once and one of them in a loop."""
    operations = []
    at = 10
    for _ in range(random.randint(0, 6)):
        module = random.choice(modules)
        for name in ("dot.1", "add.2"):
            operations.append(Operation(name, module, at, at + 3))
            at += random.choice((3, 5))
        for _ in range(random.randint(1, 3)):
            operations.append(Operation("loop.3", module, at, at + 2))
            at += 3
        at += random.choice((1, 20))
    return operations


def runs_by_definition(operations: list[Operation]) -> list[tuple[int, int, str]]:
    """The n-th execution of an operation that occurs once in each run belongs to the n-th run."""
    count = Counter((each.module, each.name) for each in operations)
    runs = []
    for module in {each.module for each in operations}:
        fewest = min(number for (of, _), number in count.items() if of == module)
        for run in range(fewest):
            inside = []
            for (of, name), number in count.items():
                if of == module and number == fewest:
                    executions = [
                        each for each in operations if (each.module, each.name) == (module, name)
                    ]
                    inside.append(sorted(executions, key=lambda each: each.start)[run])
            runs.append(
                (min(each.start for each in inside), max(each.end for each in inside), module)
            )
    return sorted(runs)


@examples(60)
@given(randoms)
def test_runs_of_programs(random: Random) -> None:
    operations = random_runs(random, ("jit_f(1)", "jit_f(2)", "jit_g"))
    trace = cpu_trace([], operations)
    found = cpu_runs(trace)
    expected = runs_by_definition(operations)
    modules = [trace.strings[module] for module in found.module.tolist()]
    assert (
        list(zip(found.start_ns.tolist(), found.end_ns.tolist(), modules, strict=True)) == expected
    )
    # Whatever the shapes; runs in parallel count once.
    of_f = [(begin, end) for begin, end, module in expected if module.startswith("jit_f")]
    first = [
        (begin, end)
        for place, (begin, end) in enumerate(of_f)
        if all(begin >= other for _, other in of_f[:place])
    ]
    runs = runs_of_function(trace, "f")
    assert list(zip(runs.start_ns.tolist(), runs.end_ns.tolist(), strict=True)) == first


def test_names_of_functions_and_programs() -> None:
    names = ("PjitFunction(step)", "PjitFunction(<lambda>)", "f")
    assert [function_of(name) for name in names] == ["step", "<lambda>", ""]
    assert [program_of(name) for name in ("step", "<lambda>", "a b")] == [
        "jit_step", "jit__lambda", "jit_a_b"
    ]  # fmt: skip
    assert [program_name(name) for name in ("jit_f(77)", "jit_f", "jit__lambda_(3)")] == [
        "jit_f", "jit_f", "jit__lambda"
    ]  # fmt: skip


@examples(80)
@given(randoms)
def test_calls_of_functions(random: Random) -> None:
    calls = []
    for thread in ("python", "other"):
        at = 2
        for _ in range(random.randint(0, 6)):
            end = at + random.choice((2, 6, 12))
            name = random.choice(
                ("PjitFunction(f)", "PjitFunction(g)", "PjitFunction(_where)", "compile", "x")
            )
            calls.append((name, at, end, thread))
            if random.random() < 0.4 and end > at + 2:
                calls.append(("PjitFunction(f)", at + 1, end - 1, thread))
            at = end + random.choice((0, 1, 5))
    operations = random_runs(random, ("jit_f(1)", "jit_g(2)"))
    trace = cpu_trace(calls, operations)
    outer = [
        call
        for call in calls
        if call[0].startswith("Pjit")
        and not any(
            (other[0].startswith("Pjit") or other[0] == "compile")
            and other[3] == call[3]
            and other[1] < call[1]
            and call[2] < other[2]
            for other in calls
        )
    ]
    rows = top_level_calls(trace).tolist()
    events = trace.events
    assert sorted((trace.name(row), int(events.start_ns[row])) for row in rows) == sorted(
        (name, start) for name, start, *_ in outer
    )
    found = {each.function: each for each in calls_by_function(trace)}
    if not outer:
        assert not found
        return
    # The main thread has most time in calls, each a nanosecond longer than it is.
    time_ns: Counter[str] = Counter()
    for _, start, end, thread in outer:
        time_ns[thread] += end - start + 1
    label = [trace.strings[name] for name in trace.tracks.label.tolist()]
    main = max(sorted(time_ns, key=label.index), key=lambda thread: time_ns[thread])
    for function in ("f", "g", "_where"):
        own = [call for call in outer if call[0] == f"PjitFunction({function})" and call[3] == main]
        if function == "_where" or not own:  # a function of JAX's own library
            assert function not in found
            continue
        starts = events.start_ns[found[function].rows].tolist()
        assert starts == sorted(start for _, start, *_ in own)
        program_ns = sum(
            each.end - each.start
            for each in operations
            if each.module.partition("(")[0] == f"jit_{function}"
        )
        assert found[function].total_ns == sum(end - start for _, start, end, _ in own) + program_ns


@examples(80)
@given(randoms)
def test_what_launched_the_operations(random: Random) -> None:
    operations = random_runs(random, ("jit_f(1)", "jit_g(2)"))
    runs = runs_by_definition(operations)
    calls = []
    is_early = random.random() < 0.8
    for place, (begin, *_, module) in enumerate(runs):
        function = module.partition("(")[0].removeprefix("jit_")
        at = begin - random.choice((0, 1)) if is_early else begin + 1
        if random.random() < 0.95 or place:
            calls.append((f"PjitFunction({function})", at, at, "python"))
    trace = cpu_trace(calls, operations)
    assert trace.tracks.kind.tolist() == [TrackKind.HOST_THREAD] * len(trace.tracks)
    found = launched_work(trace, device_timeline(trace), None)
    events = trace.events
    starts = events.start_ns[found.rows].tolist()
    assert starts == sorted(each.start for each in operations)
    expected = dict.fromkeys(starts, -1)
    for function in ("f", "g"):
        called = [start for name, start, *_ in calls if name == f"PjitFunction({function})"]
        own = [begin for begin, _, module in runs if module.startswith(f"jit_{function}")]
        if len(called) != len(own) or any(a > b for a, b in zip(called, own, strict=True)):
            continue
        for each in operations:
            if each.module.startswith(f"jit_{function}"):
                before = [place for place, begin in enumerate(own) if begin <= each.start]
                expected[each.start] = called[before[-1]] if before else -1
    assert found.launched_ns.tolist() == [expected[start] for start in starts]
