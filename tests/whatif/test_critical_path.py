from __future__ import annotations

import pytest

from tb_perfadvisor.signals import Signals
from tb_perfadvisor.testing import draw, run_of
from tb_perfadvisor.trace import Trace
from tb_perfadvisor.whatif import CriticalPath, NotReplayable, PathKind, critical_path
from tests.support.cuda_executor import CALL, LATENCY, Launch, Sync, Work, play

MS = 1_000_000


def path_of(trace: Trace) -> CriticalPath:
    found = critical_path(Signals(run_of(trace)))
    assert isinstance(found, CriticalPath)
    return found


def stretches(path: CriticalPath) -> list[tuple[str, int, int]]:
    return [
        (PathKind(kind).name, start // MS, end // MS)
        for kind, start, end in zip(
            path.kind.tolist(), path.start_ns.tolist(), path.end_ns.tolist(), strict=True
        )
    ]


def test_host_then_launch_then_kernel() -> None:
    path = path_of(
        draw("""
            cell 1ms
            step   |..........|
            main   |ppppoSSSSS|
            gpu 7  |.....KKKKK|
        """)
    )
    assert stretches(path) == [("HOST", 0, 4), ("LAUNCH", 4, 5), ("WORK", 5, 10)]


def test_path_follows_the_stream_that_was_waited_for() -> None:
    # The copy ends at 4, and the kernel that waits for it begins; the other kernel does not matter.
    path = path_of(
        draw(
            """
            cell 1ms
            step   |..........|
            main   |o.oSSSSSSS|
            gpu 7  |..K.KKKKKK|
            gpu 9  |hhhh......|
        """,
            links={("gpu 7", 1): ("main", 1)},
        )
    )
    assert stretches(path) == [("WORK", 0, 4), ("WORK", 4, 10)]


def test_path_excludes_work_that_nobody_waits_for() -> None:
    path = path_of(
        draw("""
            cell 1ms
            step   |..........|
            main   |oppppppppp|
            gpu 7  |.KKKKKKKK.|
        """)
    )
    assert stretches(path) == [("HOST", 0, 10)]


def test_path_covers_each_step_exactly() -> None:
    steps = [(Work(50_000), Launch(7, 80_000), Launch(9, 10_000), Sync())]
    trace = play(steps, repeats=6, marked_repeats=3).trace
    path = path_of(trace)
    found = Signals(run_of(trace)).steps
    for start, end in zip(found.start_ns.tolist(), found.end_ns.tolist(), strict=True):
        total = {
            kind: path.total_ns(kind, start_ns=start, end_ns=end)
            for kind in PathKind
            if path.total_ns(kind, start_ns=start, end_ns=end)
        }
        assert sum(total.values()) == end - start
        assert total == {
            PathKind.HOST: 50_000,
            PathKind.LAUNCH: LATENCY,
            PathKind.WORK: 80_000,
            PathKind.RETURN: 4_000,
        }
    assert end - start > CALL + 80_000


def test_of_two_decisive_reasons_the_devices_counts() -> None:
    # The second kernel is launched at 5,000 + 46,000 and may start 7,000 later. The first one ends
    # at 7,000 + 50,000, and 1,000 later the stream is free: at 58,000, too. That it takes 1,000 is
    # seen before the third kernel, which is launched well ahead.
    steps = [(Launch(7, 50_000), Work(46_000), Launch(7, 20_000), Launch(7, 9_000), Sync())] * 3
    path = path_of(play(steps, repeats=2).trace)
    kinds = [PathKind(kind).name for kind in path.kind[:4].tolist()]
    assert kinds == ["LAUNCH", "WORK", "GAP", "WORK"]
    ends_ns = path.end_ns[:4] - path.start_ns[0]
    assert ends_ns.tolist() == [7_000, 57_000, 58_000, 78_000]


def test_no_path_without_links() -> None:
    found = critical_path(
        Signals(
            run_of(
                draw("""
                    cell 1ms
                    step   |....|
                    main   |OOOO|
                """)
            )
        )
    )
    assert isinstance(found, NotReplayable)
    assert found.reason == "the profile has no device events"


@pytest.mark.parametrize("repeats", [1, 3])
def test_path_begins_with_the_window(repeats: int) -> None:
    trace = play([(Launch(7, 90_000), Work(10_000), Sync())] * 2, repeats=repeats).trace
    path, steps = path_of(trace), Signals(run_of(trace)).steps
    assert (path.start_ns[0], path.end_ns[-1]) == (steps.window_start_ns, steps.window_end_ns)
    assert (path.start_ns[1:] == path.end_ns[:-1]).all()
