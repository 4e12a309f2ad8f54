from __future__ import annotations

from msgspec.structs import replace

from tb_perfadvisor.rules.xla.transfers import SynchronousCollectives
from tb_perfadvisor.testing import check_rule, find
from tb_perfadvisor.testing.symbols import Symbol, xla_op
from tb_perfadvisor.trace import EventKind

_ARRAY = "bf16[2048,7168]{1,0:T(8,128)(2,1)}"
_PART = "bf16[512,7168]{1,0:T(8,128)(2,1)}"


def part(name: str, text: str) -> Symbol:
    symbol = xla_op(name, text, kind=EventKind.COLLECTIVE, category="all-gather")
    return replace(symbol, collective={"operation": "all-gather"})


LEGEND = {
    "s": part(
        "all-gather-start.1",
        f"%all-gather-start.1 = ({_PART}, {_ARRAY}) all-gather-start({_PART} %p0), "
        "channel_id=1, replica_groups=[1,4]<=[4], dimensions={0}",
    ),
    "d": part(
        "all-gather-done.1",
        f"%all-gather-done.1 = {_ARRAY} all-gather-done(({_PART}, {_ARRAY}) %all-gather-start.1)",
    ),
}
SLOW = """
    cell 1ms
    step  |..........|..........|
    main  |LSSSSSSSSS|LSSSSSSSSS|
    tpu 0 |sddddXXXXX|sddddXXXXX|
"""
FIXED = """
    cell 1ms
    step  |.......|.......|
    main  |LSSSSSS|LSSSSSS|
    tpu 0 |sXXXXXd|sXXXXXd|
"""


def test_saves_what_the_fix_saves() -> None:
    checked = check_rule(SynchronousCollectives, slow=SLOW, fixed=FIXED, saves="3ms", legend=LEGEND)
    (saving,) = (finding.saving for finding in checked.findings)
    assert saving is not None
    # Each of two steps waits 4 ms, and has 6 ms to hide that.
    assert (saving.low_ns, saving.expected_ns, saving.high_ns) == (0, 4_000_000, 8_000_000)


def test_a_done_without_its_start_does_not_count() -> None:
    trace = """
        cell 1ms
        step  |..........|..........|
        main  |LSSSSSSSSS|LSSSSSSSSS|
        tpu 0 |XddddXXXXX|XddddXXXXX|
    """
    assert find(SynchronousCollectives, trace, legend=LEGEND) == ()


def test_fires_only_with_little_compute_in_between() -> None:
    # Compute overlaps one of five milliseconds of transfer.
    trace = """
        cell 1ms
        step  |..........|..........|
        main  |LSSSSSSSSS|LSSSSSSSSS|
        tpu 0 |sXddddXXXX|sXddddXXXX|
    """
    below, above = {"maximum_hidden_share": 0.19}, {"maximum_hidden_share": 0.21}
    assert find(SynchronousCollectives, trace, legend=LEGEND, settings=below) == ()
    assert len(find(SynchronousCollectives, trace, legend=LEGEND, settings=above) or ()) == 1


def test_fires_only_above_the_limit() -> None:
    below, above = {"minimum_share": 0.39}, {"minimum_share": 0.41}
    assert len(find(SynchronousCollectives, SLOW, legend=LEGEND, settings=below) or ()) == 1
    assert find(SynchronousCollectives, SLOW, legend=LEGEND, settings=above) == ()
