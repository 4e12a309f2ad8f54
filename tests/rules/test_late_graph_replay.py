from __future__ import annotations

from tb_perfadvisor.rules.launch.launching import LaunchBound
from tb_perfadvisor.rules.launch.waits import LateGraphReplay
from tb_perfadvisor.testing import check_rule, find
from tb_perfadvisor.testing.symbols import host
from tb_perfadvisor.trace import EventKind

LEGEND = {"G": host("cudaGraphLaunch", EventKind.LAUNCH)}
# Two operators write the inputs, then one launch replays six kernels.
SLOW = """
    cell 10us
    step   |..............|..............|..............|..............|
    main   |ooo.ooo.G.....|ooo.ooo.G.....|ooo.ooo.G.....|ooo.ooo.G.....|
    gpu 7  |..K...K.K'''''|..K...K.K'''''|..K...K.K'''''|..K...K.K'''''|
"""
# The graph does that as well.
FIXED = """
    cell 10us
    step   |........|........|........|........|
    main   |G.......|G.......|G.......|G.......|
    gpu 7  |K'''''''|K'''''''|K'''''''|K'''''''|
"""
ONE = """
    cell 10us
    main   |ooo.ooo.G.....|
    gpu 7  |K.K...K.K'''''|
"""


def test_saves_what_the_fix_saves() -> None:
    # The cost of recording does not scale with the cells.
    checked = check_rule(
        LateGraphReplay, slow=SLOW, fixed=FIXED, saves="60us", legend=LEGEND, scales=False
    )
    (finding,) = checked.findings
    # 60 of 140 µs.
    assert finding.instance == "the device waits for 42.9 % of each step"
    assert "launches 2 kernels and copies before each replay" in finding.summary


def test_the_preparation_is_not_launch_bound() -> None:
    assert find(LaunchBound, SLOW, legend=LEGEND) == ()
    # Without a graph, it is.
    assert find(LaunchBound, SLOW.replace("G", "L"))


def test_half_of_the_preparation_is_expected() -> None:
    (found,) = find(LateGraphReplay, SLOW, legend=LEGEND) or ()
    assert found.saving is not None
    # Recording two operators costs at least 600 ns each.
    assert 0.45 * 4 * 60_000 < found.saving.expected_ns < 0.5 * 4 * 60_000
    assert found.saving.high_ns == 4 * 60_000


def test_a_single_replay_may_be_the_start_of_the_recording() -> None:
    (found,) = find(LateGraphReplay, ONE, legend=LEGEND) or ()
    assert found.summary.endswith("has only one replay, so this may be its start.")
    assert found.saving is not None
    # A quarter of five idle cells, minus recording.
    assert 0.2 * 50_000 < found.saving.expected_ns < 0.25 * 50_000


def test_idle_before_the_first_of_several_replays_does_not_recur() -> None:
    trace = """
        cell 10us
        main   |ooo.ooo.G..G...G..........|
        gpu 7  |K.K...K.K'''''''''''''''''|
    """
    # Three replays of six kernels; the second and the third are launched in time.
    launches = {("gpu 7", i): ("main", 2 + (i - 3) // 6) for i in range(3, 21)}
    (found,) = find(LateGraphReplay, trace, legend=LEGEND, links=launches) or ()
    assert found.saving is not None
    assert found.saving.expected_ns == 0


def test_many_launches_are_a_part_of_the_step_outside_of_the_graph() -> None:
    # Three launches before a replay of six kernels.
    trace = """
        cell 10us
        step   |...............|...............|...............|
        main   |oo.oo.oo.G.....|oo.oo.oo.G.....|oo.oo.oo.G.....|
        gpu 7  |.K..K..K.K'''''|.K..K..K.K'''''|.K..K..K.K'''''|
    """
    assert find(LateGraphReplay, trace, legend=LEGEND) == ()
    (found,) = find(LaunchBound, trace, legend=LEGEND) or ()
    # Launches are counted, not the kernels of a graph.
    assert "100.0 % of launches" in found.summary
    # It waits 20 us before each of them.
    waits = "the device waits 20.0 µs for each of 3 kernels per step outside of graphs"
    assert waits in found.summary


def test_just_below_and_just_above_the_limit() -> None:
    assert find(LateGraphReplay, SLOW, legend=LEGEND, settings={"minimum_share": 0.43}) == ()
    assert find(LateGraphReplay, SLOW, legend=LEGEND, settings={"minimum_share": 0.42})
