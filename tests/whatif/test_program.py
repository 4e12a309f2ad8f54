"""Which profiles can be replayed, and the sequence of host events."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from msgspec.structs import replace

from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.testing import draw, run_of
from tb_perfadvisor.testing.variants import without
from tb_perfadvisor.trace import EventKind, Trace
from tb_perfadvisor.whatif import (
    Async,
    NotReplayable,
    Overlap,
    Remove,
    Shorten,
    Simulation,
    simulation,
)
from tb_perfadvisor.whatif.program import NEVER, Program, find_program

HEALTHY = """
    cell 1ms
    step   |..........|..........|
    main   |ooSSSSSSSS|ooSSSSSSSS|
    gpu 7  |.KKKKKKKKK|.KKKKKKKKK|
"""


def reason(trace: Trace) -> str:
    found = simulation(Signals(run_of(trace)))
    return found.reason if isinstance(found, NotReplayable) else "replayable"


def fit(text: str, **attributes: object) -> tuple[Simulation, Trace]:
    trace = draw(text, **attributes)  # type: ignore[arg-type]
    found = simulation(Signals(run_of(trace)))
    assert isinstance(found, Simulation), found.reason
    return found, trace


def test_a_profile_with_launches_and_waits_is_fit() -> None:
    assert reason(draw(HEALTHY)) == "replayable"


def test_stream_annotations_are_not_work() -> None:
    # They start with the first kernel inside, which would seem to wait for them.
    annotated = """
        cell 1ms
        step   |..........|..........|
        main   |ooSSSSSSSS|ooSSSSSSSS|
        gpu 7  |.KKKK.KKKK|.KKKKKKKKK|
        gpu 7  |.uuuuuuuuu|..........|
    """
    program = find_program(Signals(run_of(draw(annotated))))
    assert isinstance(program, Program)
    assert program.tail_ns.tolist() == [NEVER]


def test_profile_without_links_does_not_fit() -> None:
    trace = without(draw(HEALTHY), Need.LAUNCH_LINKS)
    assert trace is not None
    assert reason(trace) == "no launch of device work was recorded in the used steps"


def test_profile_without_most_links_does_not_fit() -> None:
    trace = draw(HEALTHY.replace(".KKKKKKKKK", ".KKKK'----"))
    # The second kernel of each step, half of the device time, has no known launch.
    is_second = trace.events.start_ns % 10_000_000 == 5_000_000
    launched_by = np.where(is_second, -1, trace.events.launched_by)
    trace = replace(trace, events=replace(trace.events, launched_by=launched_by))
    assert reason(trace) == "device events are not linked to their launches"


def test_profile_without_a_device_does_not_fit() -> None:
    assert reason(draw("cell 1ms\nstep |....|\nmain |OOOO|")) == "the profile has no device events"


def test_call_that_waits_for_unrecorded_work_does_not_fit() -> None:
    # The kernel has ended long before: something else held the call for 6 ms of 10.
    trace = draw("""
        cell 1ms
        step   |..........|..........|
        main   |oSSSSSSSSS|oSSSSSSSSS|
        gpu 7  |KKK.......|KKK.......|
    """)
    assert reason(trace) == "calls wait for what the profile does not show"


def test_backward_thread_is_part_of_the_sequence() -> None:
    trace = draw("""
        cell 1ms
        step     |..........|..........|
        main     |ooo.....SS|ooo.....SS|
        autograd |....BBB...|....BBB...|
        gpu 7    |KKKKKKKKKK|KKKKKKKKKK|
        gpu 9    |....KK....|....KK....|
    """)
    program = find_program(Signals(run_of(trace)))
    assert isinstance(program, Program)
    labels = [trace.text(int(trace.tracks.label[track])) for track in program.lines[0]]
    assert sorted(labels) == ["autograd", "main"]
    assert len(program.lines) == 1


def test_threads_that_launch_concurrently_do_not_fit() -> None:
    trace = draw(
        """
        cell 1ms
        step   |..........|..........|
        main   |oooooooooo|oooooooooo|
        other  |oooooooooo|oooooooooo|
        gpu 7  |KKKKKKKKKK|KKKKKKKKKK|
        """,
        links={("gpu 7", 0): ("other", 0), ("gpu 7", 1): ("other", 1)},
    )
    assert reason(trace) == "threads beside the one that runs the steps launch device work"


def test_copy_on_a_separate_stream_delays_nothing() -> None:
    # The copy takes 3 of 10 ms, on the stream of the kernel.
    steps, trace = fit("""
        cell 1ms
        step   |..........|..........|
        main   |oSSSSSSSSS|oSSSSSSSSS|
        gpu 7  |hhhKKKKKKK|hhhKKKKKKK|
    """)
    assert steps.saved_ns(Overlap(trace.rows(EventKind.COPY))) == 6_000_000
    # The copy stays as slow: with kernels of zero length, its 3 ms per step remain.
    kernels = trace.rows(EventKind.KERNEL)
    none = Shorten(kernels, np.zeros(len(kernels), dtype=np.int64))
    assert steps.saved_ns(Overlap(trace.rows(EventKind.COPY)), none) == 14_000_000


def test_overlapped_copies_follow_one_another_on_their_link() -> None:
    # Two copies of 4 ms, one after another on two streams, and a kernel of 1 ms.
    steps, trace = fit("""
        cell 1ms
        step   |..........|..........|
        main   |oooSSSSSSS|oooSSSSSSS|
        gpu 7  |hhhh....K.|hhhh....K.|
        gpu 8  |....hhhh..|....hhhh..|
    """)
    assert steps.saved_ns(Overlap(trace.rows(EventKind.COPY))) <= 2 * 2_000_000


def test_blocking_copy_keeps_its_place() -> None:
    steps, trace = fit(
        """
        cell 1ms
        step   |..........|..........|
        main   |oLLLLLpoSS|oLLLLLpoSS|
        gpu 7  |KKKKgg.KKK|KKKKgg.KKK|
    """,
        links={("gpu 7", 1): ("main", 1), ("gpu 7", 4): ("main", 6)},
    )
    assert steps.saved_ns(Overlap(trace.rows(EventKind.COPY))) == 0
    # Without the wait the host runs ahead: only the kernels and the copy remain.
    assert steps.saved_ns(Async(trace.rows(EventKind.LAUNCH, EventKind.SYNCHRONIZE))) == 2_000_000


def test_blocking_copy_that_is_the_first_work_is_waited_for() -> None:
    # The copy takes 3 ms; only then does the host launch the kernel of 2 ms.
    steps, trace = fit(
        """
        cell 1ms
        step   |..........|..........|
        main   |LLLLoSS...|LLLLoSS...|
        gpu 7  |.ggg.KK...|.ggg.KK...|
    """,
        links={("gpu 7", 0): ("main", 0), ("gpu 7", 2): ("main", 3)},
    )
    copies = trace.rows(EventKind.COPY)
    halved = Shorten(copies, trace.events.duration_ns[copies] // 3)
    # 2 ms less of copying let the host go on 2 ms earlier, in each of two steps.
    assert steps.saved_ns(halved) == 4_000_000


SLOW_WORKERS = """
    cell 1ms
    step   |..........|..........|
    main   |DDDDo.pppp|DDDDo.pppp|
    gpu 7  |....K.....|....K.....|
"""


def test_slow_loader_workers_limit_the_replay() -> None:
    steps, trace = fit(SLOW_WORKERS)
    rows = trace.rows(EventKind.PYTHON)
    python = Remove(np.column_stack((trace.events.start_ns[rows], trace.events.end_ns[rows])))
    rows = trace.rows(EventKind.INPUT_WAIT)
    fetch = Remove(np.column_stack((trace.events.start_ns[rows], trace.events.end_ns[rows])))
    # Without the 4 ms of Python the fetch takes 4 ms longer.
    assert steps.saved_ns(python) == 0
    assert steps.saved_ns(fetch) == 8_000_000
    assert steps.saved_ns(fetch, python) == 16_000_000


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_a_fix_that_changes_nothing_saves_nothing(share: float) -> None:
    steps, trace = fit(HEALTHY)
    kernels = trace.rows(EventKind.KERNEL)
    slower = (trace.events.duration_ns[kernels] * (1 + share)).astype(np.int64)
    assert steps.saved_ns(Shorten(kernels, slower)) == 0
    assert steps.saved_ns() == 0


def test_equal_questions_are_replayed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    steps, trace = fit(HEALTHY)
    kernels = trace.rows(EventKind.KERNEL)
    halves, thirds = (
        Shorten(kernels, trace.events.duration_ns[kernels] // divisor) for divisor in (2, 3)
    )
    saved = steps.saved_ns(halves)
    with monkeypatch.context() as patch:
        patch.setattr(sys.modules[Simulation.__module__], "replay", None)
        assert steps.saved_ns(halves) == saved > 0
    assert steps.saved_ns(thirds) > saved
    assert steps.saved_ns(halves, thirds) == steps.saved_ns(thirds)


def test_work_that_is_shortened_twice_takes_the_shorter_time() -> None:
    steps, trace = fit(HEALTHY)
    kernels = trace.rows(EventKind.KERNEL)
    duration_ns = trace.events.duration_ns[kernels]
    halves, thirds = (Shorten(kernels, duration_ns // divisor) for divisor in (2, 3))
    saved = steps.saved_ns(thirds)
    # Of 2 kernels of 9 ms in 2 steps, a third stays.
    assert saved == pytest.approx(2 * 6_000_000, rel=0.01)
    for fixes in ((halves, thirds), (thirds, halves)):
        assert steps.saved_ns(*fixes) == saved
    for divisors in ((2, 3), (3, 2)):
        twice = Shorten(
            np.concatenate((kernels, kernels)),
            np.concatenate([duration_ns // divisor for divisor in divisors]),
        )
        assert steps.saved_ns(twice) == saved
