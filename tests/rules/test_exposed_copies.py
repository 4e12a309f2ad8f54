from __future__ import annotations

from msgspec.structs import replace

from tb_perfadvisor.rules.compute.redundant_copies import RedundantCopies
from tb_perfadvisor.rules.finding import Table
from tb_perfadvisor.rules.input.exposed_copies import ExposedCopies
from tb_perfadvisor.testing import check_rule, find
from tb_perfadvisor.testing.symbols import copy, xla_op
from tb_perfadvisor.trace import CopyDirection, EventKind

SLOW = """
    cell 1ms
    step   |..........|..........|
    main   |oSSSSSSSSS|oSSSSSSSSS|
    gpu 7  |...KKKKKKK|...KKKKKKK|
    gpu 9  |hhh.......|hhh.......|
"""
FIXED = """
    cell 1ms
    step   |.......|.......|
    main   |oSSSSSS|oSSSSSS|
    gpu 7  |KKKKKKK|KKKKKKK|
    gpu 9  |hhh....|hhh....|
"""


def test_saves_what_the_fix_saves() -> None:
    checked = check_rule(ExposedCopies, slow=SLOW, fixed=FIXED, saves="3ms")
    assert checked.expected_ns == 3_000_000


def test_expected_is_at_most_the_rest_of_the_step() -> None:
    trace = """
        cell 1ms
        step   |..........|..........|
        main   |o'........|o'........|
        gpu 7  |........KK|........KK|
        gpu 9  |hhhhhhhh..|hhhhhhhh..|
    """
    (finding,) = find(ExposedCopies, trace) or ()
    assert finding.saving is not None
    saving = finding.saving
    assert (saving.low_ns, saving.expected_ns, saving.high_ns) == (0, 4_000_000, 16_000_000)


def test_the_table_shows_direction_memory_and_bytes() -> None:
    legend = {
        "q": copy(
            "Memcpy HtoD (Pageable -> Device)",
            CopyDirection.HOST_TO_DEVICE,
            pageable=1,
            size_bytes=1000,
        )
    }
    trace = SLOW.replace("hhh", "qqm")
    (finding,) = find(ExposedCopies, trace, legend=legend) or ()
    table = finding.evidence[0]
    assert isinstance(table, Table)
    assert table.rows == (
        ("host to device", "pageable", 2, 2000, 4_000_000),
        ("memset", "", 2, None, 2_000_000),
    )


def test_just_below_and_just_above_the_limit() -> None:
    assert find(ExposedCopies, SLOW, settings={"minimum_share": 0.31}) == ()
    assert len(find(ExposedCopies, SLOW, settings={"minimum_share": 0.29}) or ()) == 1


def test_the_remedy_fits_the_direction() -> None:
    (over_the_link,) = find(ExposedCopies, SLOW) or ()
    (within,) = find(ExposedCopies, SLOW.replace("hhh", "bbb")) or ()
    assert "mostly host to device" in over_the_link.summary
    assert "pin_memory" in over_the_link.remedies[0].snippet
    assert "mostly within the device" in within.summary
    assert not any("pin_memory" in remedy.snippet for remedy in within.remedies)


def test_half_of_the_copies_within_the_device_is_expected_to_stay() -> None:
    (finding,) = find(ExposedCopies, SLOW.replace("hhh", "bbb")) or ()
    assert finding.saving is not None
    # Three of ten cells in each step, of which half counts.
    saving = finding.saving
    assert (saving.low_ns, saving.expected_ns, saving.high_ns) == (0, 3_000_000, 6_000_000)


def test_copies_within_a_tpu_have_one_finding() -> None:
    trace = """
        cell 1ms
        step  |..........|..........|
        main  |LSSSSSSSSS|LSSSSSSSSS|
        tpu 0 |XXXXXXbbbb|XXXXXXbbbb|
    """
    text = "%copy.8 = bf16[8,128]{1,0:T(8,128)(2,1)} copy(bf16[8,128]{1,0:T(8,128)(2,1)} %cache.1)"
    symbol = xla_op("copy.8", text, kind=EventKind.COPY)
    symbol = replace(symbol, copy={"direction": CopyDirection.DEVICE_TO_DEVICE})
    assert not find(ExposedCopies, trace, legend={"b": symbol})
    assert find(RedundantCopies, trace, legend={"b": symbol})
