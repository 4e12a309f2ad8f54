"""Loops that nothing marks: their iterations are found again where they were drawn."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tb_perfadvisor.signals.core.device import device_timeline
from tb_perfadvisor.signals.core.steps.marker_rows import Markers
from tb_perfadvisor.signals.core.steps.periods import (
    backward_passes,
    optimizer_steps,
    repetitions,
    whole_iterations,
)
from tb_perfadvisor.testing import TraceBuilder
from tb_perfadvisor.trace import CopyDirection, EventKind
from tests.support.night import examples

randoms = st.integers(0, 2**32).map(Random)
NODE = "autograd::engine::evaluate_function: "


def period(kinds: list[object]) -> int:
    """After how many pieces of work all come again in the same order; 0 if never."""
    return next(
        (
            length
            for length in range(1, len(kinds) // 2 + 1)
            if all(kinds[at] == kinds[at - length] for at in range(length, len(kinds)))
        ),
        0,
    )


def is_longer(work: list[int]) -> list[bool]:
    """Which pieces take longer than the others, above the widest gap of a quarter or more."""
    ordered = sorted(work)
    if len(work) < 4 or not ordered[0]:
        return [False] * len(work)
    ratios = [after / before for before, after in pairwise(ordered)]
    widest = ratios.index(max(ratios))
    longer = [amount > ordered[widest] and max(ratios) >= 1.25 for amount in work]
    return longer if sum(longer) >= 3 else [False] * len(work)


def iterations(kinds: list[object], work: list[int], ends: list[int]) -> tuple[int, list[int]]:
    """The period of pieces of work, and the ends of iterations."""
    by_time: list[object] = list(zip(kinds, is_longer(work), strict=True))
    # The first piece may have begun before the recording.
    chosen = by_time if period(kinds[1:]) == 1 and period(by_time[1:]) > 1 else kinds
    length = period(chosen[1:])
    if len(ends) < 4 * length:
        length = 1
    return length, ends[max(length, 1) - 1 :: max(length, 1)]


def assert_markers(found: Markers | None, source: str, length: int, ends: list[int]) -> None:
    assert found is not None
    each = f", {length} each" if length > 1 else ""
    assert found.source == f"{source}{each}"
    assert found.start_ns.tolist() == ends[:-1]
    assert found.end_ns.tolist() == ends[1:]
    assert found.number.tolist() == list(range(1, len(ends)))
    assert (found.is_inferred, found.marked_ends) == (True, False)


@examples(80)
@given(randoms)
def test_updates_that_end_iterations(random: Random) -> None:
    builder = TraceBuilder().annotation("first", 0, 1)
    has_nodes = random.random() < 0.6
    # What is done between two updates: operators of these names, and how long each takes.
    pattern = [
        (
            random.choice(("SGD", "SGD", "Adam")),
            [random.choice("ab") for _ in range(random.randint(1, 3))],
            random.choice((10, 10, 12, 13, 20)),
        )
        for _ in range(random.randint(1, 3))
    ]
    kinds: list[object] = []
    work, ends = [], []
    at = 10
    for place in range(random.randint(1, 13)):
        update, names, length = pattern[place % len(pattern)]
        if random.random() < 0.03:
            names = ["c"]
        for name in random.sample(names, len(names)):
            builder.operator(
                f"{NODE}{name}" if has_nodes else name, at, at + length, launches=False
            )
            at += length + 1
        # An update inside of a backward pass is a part of it.
        if has_nodes and random.random() < 0.2:
            builder.operator(f"{NODE}a", at, at + length, launches=False)
            builder.annotation("Optimizer.step#SGD.step", at + 1, at + 2)
            names = [*names, "a"]
            at += length + 1
        builder.annotation(f"Optimizer.step#{update}.step", at, at + 5)
        kinds.append((update, sorted(names)))
        work.append(len(names) * length)
        ends.append(at + 5)
        at += random.choice((5, 7))
    trace = builder.build()
    found = optimizer_steps(trace, device_timeline(trace))
    if len(ends) < 3:
        assert found is None
        return
    length, bounds = iterations(kinds, work, ends)
    assert_markers(found, f"repeats of Optimizer.step#{pattern[0][0]}.step", length, bounds)


@examples(60)
@given(randoms)
def test_backward_passes_that_end_iterations(random: Random) -> None:
    builder = TraceBuilder().annotation("first", 0, 1)
    pattern = [
        [random.choice("ab") for _ in range(random.randint(1, 3))]
        for _ in range(random.randint(1, 2))
    ]
    kinds: list[object] = []
    work, ends = [], []
    at = 10
    has_forward = random.random() < 0.9
    for place in range(random.randint(1, 9)):
        if has_forward:
            builder.operator("aten::mm", at, at + 3, launches=False)
        at += 4
        names = pattern[place % len(pattern)]
        for name in names:
            builder.operator(f"{NODE}{name}", at, at + 10, thread="autograd", launches=False)
            # What a node calls is no forward pass.
            builder.operator("aten::mm", at + 2, at + 4, thread="autograd", launches=False)
            at += 11
        kinds.append(sorted(names))
        work.append(10 * len(names))
        ends.append(at - 1)
        at += random.choice((1, 6))
    trace = builder.build()
    found = backward_passes(trace, device_timeline(trace))
    if not has_forward or len(ends) < 3:
        assert found is None
        return
    length, bounds = iterations(kinds, work, ends)
    assert_markers(found, "the ends of backward passes", length, bounds)


@examples(60)
@given(randoms)
def test_programs_that_run_several_times_in_an_iteration(random: Random) -> None:
    builder = TraceBuilder("jax").annotation("first", 0, 1)
    pattern = [random.choice("fg") for _ in range(random.randint(1, 4))]
    runs = (pattern * random.randint(1, 5))[random.randrange(2) :]
    if "f" not in runs:
        return
    for place, name in enumerate(runs):
        builder.derived("modules", f"jit_{name}({place})", 10 * place + 10, 10 * place + 15)
    trace = builder.build()
    programs = trace.rows(EventKind.DEVICE_MODULE)
    own = programs[[name == "f" for name in runs]]
    starts = trace.events.start_ns[own]
    numbers = np.arange(len(own), dtype=np.int64)
    markers = Markers("runs", True, numbers, starts, starts + 5, False, -1, ends_with_work=True)
    found = whole_iterations(markers, trace, own, programs)
    length = period(list(runs))
    inside = runs[:length].count("f")
    # An iteration begins where the program runs after another one, and the last one is not whole.
    first = next(
        (
            place
            for place in range(len(runs))
            if runs[place] == "f" and runs[place - 1 if place else -1] != "f"
        ),
        0,
    )
    begins = [10 * place + 10 for place in range(first, len(runs), max(length, 1))]
    if length < 2 or inside < 2 or len(begins) < 3:
        assert found is markers
        return
    assert found.start_ns.tolist() == begins[:-1]
    assert found.end_ns.tolist() == begins[1:]
    assert found.source == f"runs, {inside} runs each"
    assert found.number.tolist() == list(range(len(begins) - 1))
    assert not found.ends_with_work


@examples(40)
@given(randoms)
def test_work_that_a_device_repeats(random: Random) -> None:
    builder = TraceBuilder().annotation("first", 0, 1)
    # Each iteration launches kernels of other names in this order, and then waits or copies.
    names = [f"k{place}" for place in range(random.randint(2, 6))]
    count = random.randint(3, 8)
    waits = random.choice(("synchronize", "copy", "nothing"))
    spacing = 10_000
    at, starts, ends = spacing, [], []
    for number in range(count):
        starts.append(at)
        for place, name in enumerate(names):
            key = f"{number} {place}"
            builder.launch(at, at + 1_000, key=key)
            builder.kernel(name, at + 2_000, at + 6_000, launched_by=key)
            ends.append(at + 1_000)
            at += spacing
        if waits == "synchronize":
            builder.synchronize(at, at + 5_000)
            ends[-1] = at + 5_000
            at += spacing
        elif waits == "copy":
            key = f"copy {number}"
            builder.launch(at, at + 1_000, name="cudaMemcpyAsync", key=key)
            builder.copy(CopyDirection.DEVICE_TO_HOST, at + 2_000, at + 3_000, launched_by=key)
            ends[-1] = at + 1_000
            at += spacing
        at += 50_000  # the host's longest pause
    trace = builder.build()
    found = repetitions(trace, device_timeline(trace))
    # Short periods count from five on, and only where the host waits in nearly each of them.
    if count < 5 or waits == "nothing":
        assert found is None
        return
    assert found is not None
    assert found.start_ns.tolist() == starts[: len(found.start_ns)]
    assert len(found.start_ns) >= count - 1
    each = len(names) + (waits == "copy")
    assert found.source.startswith(f"{count} repetitions of {each} kernels and copies, mostly k")
    assert (found.is_inferred, found.ends_with_work) == (True, True)
