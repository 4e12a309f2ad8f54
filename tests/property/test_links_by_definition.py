"""Links between launches and runs, clocks of devices, and markers of steps, one by one."""

from __future__ import annotations

from itertools import pairwise
from random import Random
from statistics import median
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tb_perfadvisor.signals.core.device import device_timeline
from tb_perfadvisor.signals.core.steps.launched_work import launched_work, most_costly_function
from tb_perfadvisor.signals.core.steps.marker_rows import Markers
from tb_perfadvisor.signals.core.steps.markers import ends_of_functions, find_markers
from tb_perfadvisor.signals.core.steps.windows import fetch_before_work
from tb_perfadvisor.testing import TraceBuilder
from tb_perfadvisor.trace import EventKind
from tests.support.night import examples
from tests.support.xspaces import Drawing

randoms = st.integers(0, 2**32).map(Random)
US = 1_000


@examples(40)
@given(randoms)
def test_what_launched_the_runs_of_a_tpu(random: Random) -> None:
    drawing = Drawing()
    host, tpu = drawing.plane("/host:CPU"), drawing.plane("/device:TPU:1")
    tasks = drawing.line(host, "pjrt-tpu-tasks/7")
    modules, operations = drawing.line(tpu, "XLA Modules"), drawing.line(tpu, "XLA Ops")
    # The numbers of contexts and runs are the same on purpose: they are of different kinds.
    launches: list[dict[str, int]] = []
    runs: list[dict[str, int]] = []
    for place in range(random.randint(1, 4)):
        for events, device in ((launches, random.choice((1, 1, 1, 0))), (runs, 1)):
            stats: dict[str, int] = {}
            if random.random() < 0.6:
                stats["context"] = place
            if random.random() < 0.6:
                stats |= {"run": place, "device": device}
            events.append(stats)
    for place, stats in enumerate(launches):
        written: dict[str, Any] = {}
        if "context" in stats:
            written |= {"_pt": 12, "_p": stats["context"]}
        if "run" in stats:
            written |= {"run_id": stats["run"], "device_ordinal": stats["device"]}
        drawing.event(host, tasks, "DoEnqueueProgram", 1_000 * US * place, US, **written)
    for place, stats in enumerate(runs):
        written = {"_ct": 12, "_c": stats["context"]} if "context" in stats else {}
        written |= {"run_id": stats["run"]} if "run" in stats else {}
        begin = (1_000 * place + 50) * US
        drawing.event(tpu, modules, f"jit_f({place})", begin, 100 * US, **written)
        drawing.event(tpu, operations, f"%op.{place} = f32[8] dot()", begin, 90 * US)
    trace = drawing.read()
    events = trace.events
    found = {}
    for row in trace.rows(EventKind.KERNEL).tolist():
        launch = int(events.launched_by[row])
        place = int(trace.name(row).removeprefix("op."))
        found[place] = int(events.start_ns[launch]) // (1_000 * US) if launch >= 0 else -1

    def launch_of(run: dict[str, int]) -> int:
        """By the context that both have, else by the run's number on its device."""
        for place, launch in enumerate(launches):
            if "context" in run and launch.get("context") == run["context"]:
                return place
        for place, launch in enumerate(launches):
            has_context = "context" in launch  # then that is what it is known by
            is_here = launch.get("device") == 1
            if "run" in run and not has_context and is_here and launch["run"] == run["run"]:
                return place
        return -1

    if all("context" not in launch and "run" not in launch for launch in launches):
        return  # then calls of functions are matched in order
    assert found == {place: launch_of(run) for place, run in enumerate(runs)}


@examples(40)
@given(randoms)
def test_times_of_a_device_s_counter(random: Random) -> None:
    drawing = Drawing()
    host, tpu = drawing.plane("/host:CPU"), drawing.plane("/device:TPU:0")
    drawing.event(host, drawing.line(host, "python"), "first", 0, US)
    steps, operations = drawing.line(tpu, "Steps"), drawing.line(tpu, "XLA Ops")
    is_complete = random.random() < 0.85
    rows = []
    at, counter = 10_000, 500_000
    stretch = random.choice((0, 0, 1, 9, 10, 11, 300))
    for place in range(random.randint(1, 4)):
        length = random.choice((0, 500, 1_000))
        # The profile's clock stretches the first operation.
        shown = length + (stretch if place == 0 else 0)
        rows.append((at, shown, counter, length))
        stats = {"device_offset_ps": counter * 1000, "device_duration_ps": length * 1000}
        if not is_complete and place == 0:
            stats.pop(random.choice(list(stats)))
        drawing.event(tpu, operations, f"%op.{place} = f32[8] dot()", at, shown, **stats)
        apart = random.choice((0, 100))
        at, counter = at + shown + apart, counter + length + apart
    drawing.event(tpu, steps, "1", rows[0][0], at - rows[0][0])
    trace = drawing.read()
    events, kernels = trace.events, trace.rows(EventKind.KERNEL)
    error = sum(abs(shown - length) for _, shown, _, length in rows)
    is_moved = is_complete and error > 0.01 * sum(length for *_, length in rows)
    found = {
        trace.name(row): (int(events.start_ns[row]), int(events.duration_ns[row]))
        for row in kernels.tolist()
    }
    apart = int(np.median([start - counted for start, _, counted, _ in rows]))
    assert found == {
        f"op.{place}": (counted + apart, length) if is_moved else (start, shown)
        for place, (start, shown, counted, length) in enumerate(rows)
    }


# --- functions and markers ------------------------------------------------------------------


@examples(60)
@given(randoms)
def test_the_function_that_marks_steps(random: Random) -> None:
    builder = TraceBuilder("jax").annotation("first", 0, 1, thread="python")
    calls: dict[str, list[tuple[int, int]]] = {}
    at = 10
    for name in random.sample(["f", "g", "h"], random.randint(1, 3)):
        apart = random.choice((499_999, 500_000, 500_001, 200_000))
        for _ in range(random.choice((2, 3, 4))):
            length = random.choice((10, 100_000))
            builder.annotation(f"PjitFunction({name})", at, at + length, thread="python")
            calls.setdefault(name, []).append((at, length))
            at += apart
        at += 1_000_000
    found = most_costly_function(builder.build(), 3, 500_000)
    candidates = {}
    for name, own in calls.items():
        total = sum(length for _, length in own)
        apart = [after[0] - before[0] for before, after in pairwise(own)]
        usual = max(median(apart) if apart else 0, total / len(own))
        if len(own) >= 3 and (len(calls) == 1 or usual >= 500_000):
            candidates[name] = total
    if not candidates:
        assert found is None
        return
    assert found is not None
    assert found.total_ns == max(candidates.values())
    assert candidates[found.function] == found.total_ns


@examples(60)
@given(randoms)
def test_the_loop_that_marks_steps(random: Random) -> None:
    builder = TraceBuilder().annotation("first", 0, 1, thread="a").annotation("x", 0, 1, thread="b")
    loops: dict[tuple[str, str], list[tuple[int, int]]] = {}
    at = 10
    for name in random.sample(["train", "eval loop", "test", "fit"], random.randint(1, 3)):
        thread = random.choice("ab")
        for number in range(random.randint(1, 4)):
            builder.step(number, at, at + 5, name=f"{name} {number}", thread=thread)
            loops.setdefault((name, thread), []).append((at, at + 5))
            at += random.choice((5, 6))
    trace = builder.build()
    found = find_markers(trace, device_timeline(trace))

    def order(loop: tuple[str, str]) -> tuple[bool, int, int]:
        """Not evaluation, the most markers, the first one."""
        evaluates = loop[0] in ("eval loop", "test")
        return evaluates, -len(loops[loop]), loops[loop][0][0]

    best = min(loops, key=order)
    assert found is not None
    assert (found.source, found.is_inferred, found.marked_ends) == (best[0], False, True)
    times = zip(found.start_ns.tolist(), found.end_ns.tolist(), strict=True)
    assert list(times) == loops[best]


@examples(60)
@given(randoms)
def test_where_the_work_of_a_marker_ends(random: Random) -> None:
    builder = TraceBuilder("tensorflow").annotation("first", 0, 1)
    time_ns: dict[str, int] = {}
    inside: list[list[tuple[str, int]]] = []
    bounds = []
    at = 0
    for number in range(random.randint(1, 3)):
        begin = at
        inside.append([])
        for _ in range(random.randint(0, 4)):
            name, length = random.choice(("train", "log")), random.choice((5, 20))
            thread = random.choice(("main", "main", "main", "other"))
            builder.annotation(
                f"EagerExecute: __inference_{name}_1", at + 1, at + 1 + length, thread=thread
            )
            if thread == "main":
                time_ns[name] = time_ns.get(name, 0) + length
                inside[-1].append((name, at + 1 + length))
            at += length + 2
        at += 10
        end = at - random.choice((0, 0, 12))
        bounds.append((begin, max(end, begin + 1)))
        builder.step(number, *bounds[-1], name="Profiled batch")
    trace = builder.build()
    rows = trace.rows(EventKind.STEP)
    costs = set(time_ns.values())
    if len(costs) < len(time_ns):
        return  # both functions cost as much
    costliest = max(time_ns, key=lambda name: time_ns[name], default="")
    expected = []
    for (_, end), calls in zip(bounds, inside, strict=True):
        ends = [at for name, at in calls if name == costliest]
        expected.append(min(max(ends), end) if ends else end)
    assert ends_of_functions(trace, rows).tolist() == expected


@examples(60)
@given(randoms)
def test_the_fetch_before_the_first_work(random: Random) -> None:
    builder = TraceBuilder().annotation("first", 0, 1)
    fetches = []
    at = 2
    launch_at = random.randint(5, 200)
    for _ in range(random.randint(0, 4)):
        length = random.choice((10, 29, 30, 31, 90))
        thread = random.choice(("main", "main", "other"))
        processes = random.random() < 0.5
        name = "_MultiProcessingDataLoaderIter" if processes else "_SingleProcessDataLoaderIter"
        builder.host(EventKind.INPUT_WAIT, name, at, at + length, thread=thread)
        if thread == "main":
            fetches.append((at, at + length, processes))
        at += length + random.choice((0, 5))
    builder.launch(launch_at, launch_at + 1, key="work")
    builder.kernel("k", 500, 600, launched_by="work")
    trace = builder.build()
    found = fetch_before_work(trace, device_timeline(trace))
    before = [fetch for fetch in fetches if fetch[1] <= launch_at]
    later = [fetch for fetch in fetches if fetch[0] > launch_at]
    if not before or (
        later and 3 * max(end - start for start, end, _ in later) < before[-1][1] - before[-1][0]
    ):
        assert found is None
        return
    assert found is not None
    assert int(trace.events.start_ns[found.row]) == before[-1][0]
    assert (found.is_only, found.has_processes) == (not later, before[-1][2])


@examples(60)
@given(randoms)
def test_work_of_steps_that_are_matched_in_order(random: Random) -> None:
    builder = TraceBuilder("jax").device("TPU v5e", kind="tpu", memory_bytes=1)
    numbers = [random.choice((0, 5)) + place for place in range(random.randint(1, 4))]
    shown = list(numbers)
    random.shuffle(shown)
    if random.random() < 0.3:
        shown = shown[1:] if random.random() < 0.5 else [*shown, 99]
    has_line, has_modules = random.random() < 0.6, random.random() < 0.7
    spans = []
    at = 100
    count = random.choice((len(numbers), len(numbers), len(numbers) + 1))
    for place in range(max(len(shown), count)):
        length = random.choice((20, 40))
        if has_line and place < len(shown):
            builder.derived("steps", str(shown[place]), at, at + length, step=shown[place])
        if has_modules and place < count:
            builder.derived("modules", "jit_f(1)", at, at + length)
            builder.derived("modules", "jit_small(2)", at + length, at + length + 1)
        spans.append((at, at + length))
        builder.xla_op("fusion.1", at + 1, at + 2, launched_by="")
        builder.xla_op("fusion.1", at + length + 2, at + length + 3, launched_by="")
        at += length + 10
    trace = builder.annotation("first", 0, 1).build()
    starts = np.array([10 * place for place in range(len(numbers))], dtype=np.int64)
    markers = Markers("x", False, np.array(numbers), starts, starts + 10, True, 0)
    found = launched_work(trace, device_timeline(trace), markers)
    launched = {}
    if has_line and set(numbers) <= set(shown):
        for place, number in enumerate(shown):
            if number in numbers:
                launched[spans[place][0] + 1] = 10 * numbers.index(number)
    elif has_modules and count == len(numbers):
        launched = {spans[place][0] + 1: 10 * place for place in range(count)}
    begun = trace.events.start_ns[found.rows].tolist()
    assert found.launched_ns.tolist() == [launched.get(at, -1) for at in begun]
    by_order = "jit_f(1)" if launched and not (has_line and set(numbers) <= set(shown)) else ""
    assert found.by_order == by_order
