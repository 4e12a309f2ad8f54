from __future__ import annotations

from msgspec.structs import replace

from tb_perfadvisor.rules.compute.forms import RedundantCopies
from tb_perfadvisor.rules.finding import Finding, Table
from tb_perfadvisor.rules.input.copies import ExposedCopies
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
    # In the first of eight cells nothing is launched that could wait for the copy. In the three
    # cells of each step in which no launched work waits, there is room for it.
    saving = finding.saving
    assert (saving.low_ns, saving.expected_ns, saving.high_ns) == (0, 6_000_000, 14_000_000)


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
    (over_the_link,) = find(ExposedCopies, SLOW.replace("hhh", "qqq")) or ()
    assert "mostly host to device" in over_the_link.summary
    assert changes(over_the_link) == ["pinned-memory", "copy-ahead"]
    (within,) = find(ExposedCopies, SLOW.replace("hhh", "bbb")) or ()
    assert "mostly within the device" in within.summary
    assert changes(within) == ["copies-within-device"]
    (filled,) = find(ExposedCopies, SLOW.replace("hhh", "mmm")) or ()
    assert changes(filled) == ["copies-within-device"]
    (to_host,) = find(ExposedCopies, SLOW.replace("hhh", "ggg")) or ()
    assert changes(to_host) == ["results-to-pinned-memory"]


def changes(finding: Finding) -> list[str]:
    return [remedy.change for remedy in finding.remedies if remedy.framework == "pytorch"]


def test_what_is_pinned_and_on_a_stream_of_its_own_is_not_advised_again() -> None:
    # The kernel is launched in the first cell, and waits for the copy on stream 9.
    large = "Memcpy HtoD (Pinned -> Device)", CopyDirection.HOST_TO_DEVICE
    legend = {"h": copy(*large, pageable=0, size_bytes=1 << 20)}
    (apart,) = find(ExposedCopies, SLOW, legend=legend) or ()
    assert changes(apart) == ["copy-ahead"]
    assert "have a stream of their own already" in apart.remedies[0].text
    table = apart.evidence[1]
    assert isinstance(table, Table)
    # The kernel is launched when the copy begins, and waits for three cells in both steps.
    assert [row[1:] for row in table.rows] == [("stream 7", "stream 9", 2, 6_000_000)]
    on_the_same_stream = """
        cell 1ms
        step   |..........|..........|
        main   |oSSSSSSSSS|oSSSSSSSSS|
        gpu 7  |hhhKKKKKKK|hhhKKKKKKK|
    """
    (pinned,) = find(ExposedCopies, on_the_same_stream, legend=legend) or ()
    assert changes(pinned) == ["copy-ahead"]
    assert "copy it on a separate stream" in pinned.remedies[0].text


def test_copies_beside_which_nothing_is_launched_cost_nothing() -> None:
    late = """
        cell 1ms
        step   |..........|..........|
        other  |L.........|L.........|
        main   |ppp'oSSSSS|ppp'oSSSSS|
        gpu 7  |....KKKKKK|....KKKKKK|
        gpu 9  |hhh.......|hhh.......|
    """
    assert find(ExposedCopies, late) == ()
    # From pageable memory, they hold up the host.
    assert find(ExposedCopies, late.replace("hhh", "qqq"))


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
