"""Which markers are whole steps, and which first steps are warm-up, worked out one by one."""

from __future__ import annotations

from itertools import groupby, pairwise
from random import Random
from statistics import median

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tb_perfadvisor.signals.core.device import device_timeline
from tb_perfadvisor.signals.core.steps.marker_rows import Markers
from tb_perfadvisor.signals.core.steps.partial_steps import (
    BETWEEN_LOST,
    EARLIER_WORK,
    LOST_EVENTS,
    OTHER_LOOP,
    Used,
    has_end,
    warm_up,
    whole_steps,
    without_missing_end,
)
from tb_perfadvisor.signals.core.steps.steps import step_kinds
from tb_perfadvisor.signals.core.steps.windows import Windows
from tb_perfadvisor.testing import TraceBuilder
from tb_perfadvisor.trace import EventKind
from tests.support.night import examples

randoms = st.integers(0, 2**32).map(Random)
LENGTH = 100


def markers_of(
    numbers: list[int], *, gap: int = 0, is_inferred: bool = False, marked_ends: bool = False
) -> Markers:
    starts = np.arange(len(numbers), dtype=np.int64) * LENGTH
    return Markers(
        "x", is_inferred, np.array(numbers, dtype=np.int64), starts, starts + LENGTH - gap,
        marked_ends, 0, left_out=np.array([77]),
    )  # fmt: skip


def windows_of(markers: Markers, work: list[int]) -> Windows:
    start = markers.start_ns
    end = start + LENGTH
    return Windows(start, end, start, end, True, np.array(work, dtype=np.int64))


def longest_by_number(numbers: list[int]) -> tuple[int, int]:
    """The bounds of the longest run of steps that follow each other; the last one on a tie."""
    apart = [after - before for before, after in pairwise(numbers)]
    jumps = [place for place, distance in enumerate(apart) if distance > median(apart)]
    if len(apart) < 2 or not jumps or len(jumps) > len(apart) // 2:
        return 0, len(numbers)
    bounds = [0, *(place + 1 for place in jumps), len(numbers)]
    return max(pairwise(bounds), key=lambda run: (run[1] - run[0], run[0]))


def longest_whole(is_whole: list[bool]) -> tuple[int, int]:
    """The bounds of the longest run of steps that have their events."""
    if all(is_whole) or not any(is_whole):
        return 0, len(is_whole)
    runs, at = [], 0
    for whole, group in groupby(is_whole):
        length = len(list(group))
        runs += [(at, at + length)] if whole else []
        at += length
    first, last = max(runs, key=lambda run: (run[1] - run[0], run[0]))
    if last - first < min(3, sum(is_whole)):
        return runs[0][0], runs[-1][1]
    return first, last


@examples(60)
@given(randoms)
def test_whole_steps(random: Random) -> None:
    numbers = [0]
    for _ in range(random.randint(1, 9)):
        numbers.append(numbers[-1] + random.choice((1, 1, 1, 1, 2, 5)))
    is_inferred = random.random() < 0.3
    markers = markers_of(numbers, is_inferred=is_inferred)
    work = [random.choice((100, 100, 100, 0, 4, 5, 6, 49, 50, 51, 80)) for _ in numbers]
    kinds = [random.choice((0, 0, 0, 1)) for _ in numbers]
    recorded_from = random.choice((0, 0, 150, 100))
    has_device = random.random() < 0.6
    builder = TraceBuilder().operator("aten::mm", 0, len(numbers) * LENGTH, launches=False)
    share = []
    loses_some = random.random() < 0.4
    for place in range(len(numbers)):
        # Twenty launches, of which three lack their event: that is just about what may be missing.
        count = 20 if loses_some or place == 0 else 0
        count = 0 if random.random() < 0.1 else count
        lost = random.choice((0, 0, 3, 4, 20)) if loses_some else 0
        for launch in range(count):
            at = place * LENGTH + launch
            key = str(at)
            builder.launch(at, at, key=key)
            if launch >= lost and has_device:
                builder.kernel("k", at, at + 1, launched_by=key)
        share.append((count - min(lost, count)) / count if count else 1.0)
    trace = builder.build()
    found = whole_steps(
        trace, device_timeline(trace), markers, windows_of(markers, work), np.array(kinds),
        recorded_from,
    )  # fmt: skip
    first, last = longest_by_number(numbers)
    reasons = {77: OTHER_LOOP}
    reasons |= {
        number: f"partial: the steps {'after' if place < first else 'before'} it were not recorded"
        for place, number in enumerate(numbers)
        if not first <= place < last
    }
    has_device = device_timeline(trace).index is not None
    if has_device:
        is_whole = [max(share) - part <= 0.15 for part in share[first:last]]
        begin, end = longest_whole(is_whole)
        for place, whole in enumerate(is_whole):
            if not begin <= place < end:
                reasons[numbers[first + place]] = BETWEEN_LOST if whole else LOST_EVENTS
        first, last = first + begin, first + end
    late = sum(place * LENGTH < recorded_from for place in range(len(numbers)))

    def usual(place: int) -> float:
        others = [at for at in range(first, last) if at != place]
        alike = [at for at in others if kinds[at] == kinds[place]]
        return median(work[at] for at in alike or others)

    def is_fragment(place: int) -> bool:
        least = 0.05 if is_inferred else 0.5
        inner = work[first + 1 : last - 1]
        if work[place] > 0 and any(at <= 1.25 * work[place] for at in inner):
            return False
        return work[place] < least * usual(place)

    while last - first > 1 and is_fragment(last - 1):
        last -= 1
        reasons[numbers[last]] = "partial: "
    while last - first > 1 and is_fragment(first):
        reasons[numbers[first]] = EARLIER_WORK if first < late else "partial: "
        first += 1
    assert (found.first, found.last) == (first, last)
    given = {step.number: step.reason for step in found.excluded}
    assert given.keys() == reasons.keys()
    assert all(given[number].startswith(reason) for number, reason in reasons.items())


@examples(60)
@given(randoms)
def test_the_end_of_the_last_step(random: Random) -> None:
    count = random.randint(2, 5)
    # Gaps of half a hundredth of the time between markers matter.
    gap = random.choice((0, 1, 50))
    markers = markers_of(list(range(count)), gap=gap, marked_ends=random.random() < 0.7)
    last = random.choice((count, count - 1))
    used = Used(0, last)
    is_known = last < count or not markers.marked_ends or gap == 0
    assert has_end(markers, used) == is_known
    found = without_missing_end(markers, used)
    is_left_out = not is_known and last >= 3
    assert (found.first, found.last) == (0, last - is_left_out)


@examples(100)
@given(randoms)
def test_warm_up(random: Random) -> None:
    lengths = [random.choice((124, 125, 126, 199, 200, 201, 400))]
    lengths += [random.choice((90, 100, 100, 110)) for _ in range(random.randint(2, 4))]
    bounds = np.cumsum([0, *lengths]).tolist()
    is_inferred = random.random() < 0.5
    builder = TraceBuilder().annotation("first", 0, 1)
    compiled = [0] * len(lengths)
    calls = {"cuModuleLoadData": [0] * len(lengths), "cudaGraphInstantiate": [0] * len(lengths)}
    launching = [0] * len(lengths)
    for step, begin in enumerate(bounds[:-1]):
        if random.random() < (0.5 if step == 0 else 0.15):
            compiled[step] = random.choice((5, 60))
            builder.host(EventKind.COMPILE, f"compile {step}", begin, begin + compiled[step])
        for name, counts in calls.items():
            if random.random() < (0.4 if step == 0 else 0.1):
                counts[step] += 1
                builder.host(EventKind.RUNTIME, name, begin + 2, begin + 3)
        launching[step] = random.choice((0, 20, 50)) if step == 0 else random.choice((0, 0, 20))
        builder.launch(begin + 20, begin + 20 + launching[step])
    trace = builder.build()
    start, end = (np.array(part, dtype=np.int64) for part in (bounds[:-1], bounds[1:]))
    found = warm_up(trace, start, end, is_inferred)
    usual = median(lengths[1:])
    if lengths[0] < (1.25 if is_inferred else 2) * usual:
        assert not found
    elif compiled[0] and not median(compiled[1:]):
        assert found == "it compiles, the others don't"
    elif calls["cuModuleLoadData"][0] and not any(calls["cuModuleLoadData"][1:]):
        assert found == "it loads device code, the others don't"
    elif calls["cudaGraphInstantiate"][0] and not any(calls["cudaGraphInstantiate"][1:]):
        assert found == "it captures a graph, the others don't"
    elif is_inferred and 2 * (launching[0] - median(launching[1:])) >= lengths[0] - usual:
        assert found == "its launches take far longer, as the first ones of a program do"
    else:
        assert not found


def regular(is_second: list[bool]) -> int:
    """The distance of steps of the second kind, if they come at equal ones all along."""
    places = [place for place, second in enumerate(is_second) if second]
    apart = {after - before for before, after in pairwise(places)}
    if len(places) < 2 or len(apart) > 1 or apart == {1}:
        return 0
    period = apart.pop()
    covers = places[0] < period and places[-1] + period >= len(is_second)
    return period if covers else 0


@examples(120)
@given(randoms)
def test_kinds_of_steps(random: Random) -> None:
    count, every = random.randint(2, 9), random.randint(1, 4)
    markers = markers_of(list(range(count)))
    begins = random.randrange(every)
    builder = TraceBuilder().annotation("first", 0, 1)
    update, backward, work = [], [], []
    has_backward, has_update = random.random() < 0.6, random.random() < 0.7
    for step in range(count):
        is_turn = step % every == begins
        at = step * LENGTH
        updates = has_update and is_turn and random.random() < 0.95
        trains = has_backward and (random.random() < 0.9)
        if updates:
            builder.annotation("Optimizer.step#SGD.step", at + 50, at + 60)
        if trains:
            name = "autograd::engine::evaluate_function: MmBackward0"
            builder.operator(name, at + 20, at + 30, launches=False)
        update.append(updates)
        backward.append(trains)
        work.append(random.choice((0, 100)) if random.random() < 0.1 else 125 if is_turn else 100)
    found = step_kinds(builder.build(), windows_of(markers, work))
    evaluates = [
        not updates and not trains and amount > 0
        for updates, trains, amount in zip(update, backward, work, strict=True)
    ]
    ordered = sorted(work)
    is_longer = [False] * count
    if count > 3 and ordered[0] > 0 and ordered[-1] == 125:
        is_longer = [amount == 125 for amount in work]
        is_longer = is_longer if sum(is_longer) >= 3 and not all(is_longer) else [False] * count
    names: tuple[str, ...] = ("",)
    kinds, period = [False] * count, 0
    if any(backward) and sum(evaluates) >= 2 and count - sum(evaluates) >= 2:
        kinds, names = evaluates, ("training", "forward pass only")
    elif any(backward) and not all(update) and regular(update):
        kinds, period = update, regular(update)
        names = ("accumulates gradients", "updates the parameters")
    elif regular(is_longer):
        kinds, period, names = is_longer, regular(is_longer), ("shorter", "longer")
    assert (found.names, found.period) == (names, period)
    assert found.of_marker.tolist() == list(map(int, kinds))


@examples(30)
@given(randoms)
def test_a_single_step_without_work_is_none(random: Random) -> None:
    markers = markers_of([5])
    begin = random.choice((60, 99, 100, 150, 199, 200, 230))
    end = begin + random.choice((1, 40))
    markers = replace(markers, start_ns=markers.start_ns + 100, end_ns=markers.end_ns + 100)
    kind = random.choice((EventKind.OPERATOR, EventKind.LAUNCH, EventKind.PYTHON))
    builder = TraceBuilder().annotation("first", 0, 1)
    trace = builder.host(kind, "work", begin, end).build()
    found = whole_steps(
        trace, device_timeline(trace), markers, windows_of(markers, [0]), np.array([0]), 0
    )  # fmt: skip
    has_work = kind != EventKind.PYTHON and end > 100 and begin < 200
    assert len(found) == int(has_work)
    assert [step.number for step in found.excluded] == ([77] if has_work else [77, 5])
