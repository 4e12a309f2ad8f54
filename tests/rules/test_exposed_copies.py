from __future__ import annotations

from msgspec.structs import replace

from tb_perfadvisor.rules.compute.forms import RedundantCopies
from tb_perfadvisor.rules.finding import Finding, Table
from tb_perfadvisor.rules.input.copies import ExposedCopies, PageableCopies
from tb_perfadvisor.testing import check_rule, find
from tb_perfadvisor.testing.symbols import Symbol, copy, xla_op
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


WEIGHTS = """
    cell 1ms
    step   |................|................|
    main   |ooooSSSSSSSSSSSS|ooooSSSSSSSSSSSS|
    gpu 7  |hhhKhhhKhhhKhhhK|hhhKhhhKhhhKhhhK|
"""
RESIDENT = """
    cell 1ms
    step   |....|....|
    main   |oooo|oooo|
    gpu 7  |KKKK|KKKK|
"""


def weights(size_bytes: int = 64 << 20, *, pinned: bool = True) -> dict[str, Symbol]:
    kind = "Pinned" if pinned else "Pageable"
    symbol = copy(
        f"Memcpy HtoD ({kind} -> Device)",
        CopyDirection.HOST_TO_DEVICE,
        pageable=0 if pinned else 1,
        size_bytes=size_bytes,
    )
    return {"h": symbol}


def test_copies_between_few_kernels_are_weights() -> None:
    checked = check_rule(
        ExposedCopies,
        slow=WEIGHTS,
        fixed=RESIDENT,
        saves="12ms",
        legend=weights(),
        exactly=False,
        device="NVIDIA H100 80GB HBM3",
    )
    (finding,) = checked.findings
    assert finding.summary.endswith(
        "They look like weights that are kept on the host: 4 rounds per step of copies, 64.0 MiB"
        " each, with 1 kernel between two rounds. All of it would fit into the device's memory."
    )
    assert changes(finding) == ["resident-weights", "weights-ahead", "fewer-bits-for-weights"]
    assert finding.saving is not None
    # 12 of 16 cells are copies, and half of them is expected to go.
    assert (finding.saving.low_ns, finding.saving.expected_ns) == (0, 12_000_000)
    assert finding.saving.high_ns == 24_000_000


def test_batches_and_what_goes_both_ways_are_no_weights() -> None:
    h100 = "NVIDIA H100 80GB HBM3"
    small = weights((16 << 20) - 1)
    (batches,) = find(ExposedCopies, WEIGHTS, legend=small, device=h100) or ()
    assert changes(batches) == ["copy-ahead"]
    # Three rounds may be a batch in parts.
    few = WEIGHTS.replace("hhhKhhhKhhhKhhhK", "hhhKhhhKhhhKKKKK")
    (in_parts,) = find(ExposedCopies, few, legend=weights(), device=h100) or ()
    assert changes(in_parts) == ["copy-ahead"]
    back = {"g": copy("Memcpy DtoH", CopyDirection.DEVICE_TO_HOST, size_bytes=256 << 20)}
    both_ways = WEIGHTS.replace("hhhK|", "hhhg|")
    (offloaded,) = find(ExposedCopies, both_ways, legend=weights() | back, device=h100) or ()
    assert changes(offloaded) == ["copy-ahead"]


def test_weights_that_do_not_fit_may_only_be_copied_ahead() -> None:
    large = weights(20 << 30)
    (finding,) = find(ExposedCopies, WEIGHTS, legend=large, device="NVIDIA H100 80GB HBM3") or ()
    assert "would fit" not in finding.summary
    assert finding.saving is not None
    # Kernels take four cells of each step, which is all that copies can hide behind.
    assert finding.saving.expected_ns == 8_000_000
    # Without the device's name, its memory is unknown: all of the copies, or nothing.
    (unknown,) = find(ExposedCopies, WEIGHTS, legend=weights()) or ()
    assert unknown.saving is not None
    assert unknown.saving.has_no_price
    assert unknown.saving.high_ns == 24_000_000
    (pageable,) = find(PageableCopies, WEIGHTS, legend=weights(16 << 20, pinned=False)) or ()
    assert pageable.title == "Copy weights from pinned memory"
    assert changes(pageable) == ["weights-ahead", "resident-weights"]
