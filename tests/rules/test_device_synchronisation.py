from __future__ import annotations

from tb_perfadvisor.rules.evidence import Table
from tb_perfadvisor.rules.launch.device_synchronisation import DeviceSynchronisation
from tb_perfadvisor.testing import check_rule, find
from tb_perfadvisor.testing.symbols import host
from tb_perfadvisor.trace import EventKind

SLOW = """
    cell 10us
    step   |.........|.........|
    main   |oSSSo....|oSSSo....|
    gpu 7  |KKKK.KKKK|KKKK.KKKK|
"""
FIXED = """
    cell 10us
    step   |........|........|
    main   |o'......|o'......|
    gpu 7  |KKKK'KKK|KKKK'KKK|
"""


def test_saves_what_the_fix_saves() -> None:
    checked = check_rule(DeviceSynchronisation, slow=SLOW, fixed=FIXED, saves="10us")
    # Not the 30 µs of the call, in which the device works.
    assert checked.expected_ns == 10_000


def test_a_wait_costs_no_more_than_it_took() -> None:
    # After a wait of 10 µs Python computes for 50 µs: without it the host would be 10 µs ahead.
    trace = """
        cell 10us
        step   |...........|...........|
        main   |oSppppp o..|oSppppp o..|
        gpu 7  |KK......KKK|KK......KKK|
    """.replace(" o..", ".o..")
    (finding,) = find(DeviceSynchronisation, trace) or ()
    assert finding.saving is not None
    assert finding.saving.expected_ns == 20_000


def test_waiting_for_useful_work_at_the_end_of_a_step_is_no_finding() -> None:
    trace = """
        cell 10us
        step   |........|........|
        main   |oSSSSSSS|oSSSSSSS|
        gpu 7  |KKKKKKKK|KKKKKKKK|
    """
    assert find(DeviceSynchronisation, trace) == ()


def test_just_below_and_just_above_the_limit() -> None:
    # One cell of nine: 11.1 %.
    assert find(DeviceSynchronisation, SLOW, settings={"minimum_share": 0.112}) == ()
    assert len(find(DeviceSynchronisation, SLOW, settings={"minimum_share": 0.11}) or ()) == 1


def test_the_table_names_the_source_line_where_stacks_were_recorded() -> None:
    frames = {"p": host("train.py(12): step", EventKind.PYTHON)}
    stacked = SLOW.replace("    gpu 7", "    main   |.SSS.....|.SSS.....|\n    gpu 7").replace(
        "|oSSSo....|oSSSo....|", "|opppo....|opppo....|"
    )
    call, numbers = "cudaStreamSynchronize", (2, 60_000, 20_000)
    for trace, row in (
        (SLOW, ("(no operator)", call, *numbers)),
        (stacked, ("(no operator)", call, "train.py:12 step", *numbers)),
    ):
        (finding,) = find(DeviceSynchronisation, trace, legend=frames) or ()
        table = finding.evidence[0]
        assert isinstance(table, Table)
        assert table.rows == (row,)
