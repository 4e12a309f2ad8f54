from __future__ import annotations

from tb_perfadvisor.rules.finding import Table
from tb_perfadvisor.rules.xla.utilization import ShortLoopTrips
from tb_perfadvisor.testing import check_rule, find
from tb_perfadvisor.testing.symbols import xla_op
from tb_perfadvisor.trace import EventKind
from tests.support.changed_rule import changed

LEGEND = {
    "W": xla_op(
        "while.1",
        "%while.1 = (s32[]{:T(128)}, f32[8,128]{1,0:T(8,128)}) while((s32[]{:T(128)}, "
        "f32[8,128]{1,0:T(8,128)}) %tuple), condition=%cond, body=%body",
        kind=EventKind.DEVICE_ANNOTATION,
    )
}
# Ten trips of 40 ns; unrolled, two of 160 ns.
SLOW = """
    cell 20ns
    step  |....................|....................|
    main  |LSSSSSSSSSSSSSSSSSSS|LSSSSSSSSSSSSSSSSSSS|
    tpu 0 |WWWWWWWWWWWWWWWWWWWW|WWWWWWWWWWWWWWWWWWWW|
    tpu 0 |XYXYXYXYXYXYXYXYXYXY|XYXYXYXYXYXYXYXYXYXY|
"""
FIXED = """
    cell 20ns
    step  |................|................|
    main  |LSSSSSSSSSSSSSSS|LSSSSSSSSSSSSSSS|
    tpu 0 |WWWWWWWWWWWWWWWW|WWWWWWWWWWWWWWWW|
    tpu 0 |XXXXXXXYXXXXXXXY|XXXXXXXYXXXXXXXY|
"""


def test_saves_what_the_fix_saves() -> None:
    checked = check_rule(
        ShortLoopTrips, slow=SLOW, fixed=FIXED, saves="80ns", legend=LEGEND, scales=False
    )
    (finding,) = checked.findings
    assert "400 ns of each step (100.0 %) goes into loops whose trips take 40 ns" in finding.summary
    # A fifth of 400 ns, and half of it.
    assert finding.saving is not None
    assert (finding.saving.expected_ns, finding.saving.high_ns) == (160, 400)
    assert finding.severity == "low"
    table = finding.evidence[0]
    assert isinstance(table, Table)
    assert table.rows == (("while.1", 20, 800, 40),)


def test_a_loop_around_another_one_does_not_count() -> None:
    nested = SLOW.replace("XYXYXYXYXYXYXYXYXYXY", "VVVVVVVVVVVVVVVVXYXY")
    inner = """
    tpu 0 |XXXXXXXXXXXXXXXX....|XXXXXXXXXXXXXXXX....|
"""
    legend = {**LEGEND, "V": LEGEND["W"].named("while.2")}
    assert find(ShortLoopTrips, nested.rstrip() + inner, legend=legend) == ()


def test_fires_only_within_the_limits() -> None:
    for name, fires_at, passes_at in (
        ("maximum_trip_ns", 41, 40),
        ("minimum_trips", 10, 11),
        ("minimum_share", 0.99, 1.01),
    ):
        assert find(changed(ShortLoopTrips, {name: fires_at}), SLOW, legend=LEGEND)
        assert find(changed(ShortLoopTrips, {name: passes_at}), SLOW, legend=LEGEND) == ()
