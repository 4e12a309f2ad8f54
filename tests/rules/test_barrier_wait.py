from __future__ import annotations

from tb_perfadvisor.rules.xla.transfers import BarrierWait
from tb_perfadvisor.testing import check_rule, find
from tb_perfadvisor.testing.symbols import host
from tb_perfadvisor.trace import EventKind

LEGEND = {"w": host("barrier-cores", EventKind.DEVICE_ANNOTATION)}
SLOW = """
    cell 1ms
    step           |..........|..........|
    main           |LSSSSSSSSS|LSSSSSSSSS|
    tpu 0 barriers |wwww......|wwww......|
    tpu 0          |....XXXXXX|....XXXXXX|
"""
FIXED = """
    cell 1ms
    step           |......|......|
    main           |LSSSSS|LSSSSS|
    tpu 0 barriers |......|w.....|
    tpu 0          |XXXXXX|XXXXXX|
"""


def test_saves_what_the_fix_saves() -> None:
    checked = check_rule(BarrierWait, slow=SLOW, fixed=FIXED, saves="4ms", legend=LEGEND)
    assert checked.expected_ns == 4_000_000


def test_barriers_of_other_cores_and_compute_do_not_count() -> None:
    trace = """
        cell 1ms
        step            |..........|..........|
        main            |LSSSSSSSSS|LSSSSSSSSS|
        tpu 0 barriers  |..wwww....|..wwww....|
        tpu1 0 barriers |wwwwwwwww.|wwwwwwwww.|
        tpu 0           |XXXXXXXXXX|XXXXXXXXXX|
    """
    assert find(BarrierWait, trace, legend=LEGEND) == ()


def test_other_runtime_lines_are_not_barriers() -> None:
    other = {"w": host("dependency-wait", EventKind.DEVICE_ANNOTATION)}
    assert find(BarrierWait, SLOW, legend=other) is None


def test_fires_only_above_the_limit() -> None:
    below, above = {"minimum_share": 0.39}, {"minimum_share": 0.41}
    assert len(find(BarrierWait, SLOW, legend=LEGEND, settings=below) or ()) == 1
    assert find(BarrierWait, SLOW, legend=LEGEND, settings=above) == ()
