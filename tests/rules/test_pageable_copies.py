from __future__ import annotations

from tb_perfadvisor.rules.input.pageable_copies import PageableCopies
from tb_perfadvisor.testing import check_rule, find
from tb_perfadvisor.testing.symbols import Symbol, copy
from tb_perfadvisor.trace import CopyDirection

# 48 MB in 8 ms are 6 GB/s, as in the PyTorch plugin's resnet50_num_workers_4. At the limit of
# 12 GB/s they take 4 ms.
SLOW = """
    cell 1ms
    step   |............|............|
    main   |oSSSSSSSSSSS|oSSSSSSSSSSS|
    gpu 7  |qqqqqqqqKKKK|qqqqqqqqKKKK|
"""
FIXED = """
    cell 1ms
    step   |........|........|
    main   |oSSSSSSS|oSSSSSSS|
    gpu 7  |hhhhKKKK|hhhhKKKK|
"""


def to_device(pageable: int, size_bytes: int = 48_000_000) -> Symbol:
    kind = "Pageable" if pageable else "Pinned"
    return copy(
        f"Memcpy HtoD ({kind} -> Device)",
        CopyDirection.HOST_TO_DEVICE,
        pageable=pageable,
        size_bytes=size_bytes,
    )


LEGEND = {"q": to_device(1), "h": to_device(0)}


def test_saves_what_the_fix_saves() -> None:
    checked = check_rule(
        PageableCopies, slow=SLOW, fixed=FIXED, saves="4ms", legend=LEGEND, scales=False
    )
    assert checked.expected_ns == 4_000_000
    (finding,) = checked.findings
    assert finding.saving is not None
    # High: over a link of four times the bandwidth, 1 ms instead of 8.
    assert finding.saving.high_ns == 2 * 7_000_000
    assert "6.00 GB/s" in finding.summary


def test_uses_the_bandwidth_of_pinned_copies_in_the_profile() -> None:
    # 24 GB/s: 24 MB in a millisecond.
    trace = SLOW.replace("qqqqqqqqKKKK", "qqqqqqqqhKKK")
    legend = LEGEND | {"h": to_device(0, 24_000_000)}
    (finding,) = find(PageableCopies, trace, legend=legend) or ()
    assert finding.saving is not None
    assert finding.saving.expected_ns == 2 * (8_000_000 - 2_000_000)


def test_hidden_copies_cost_nothing() -> None:
    trace = """
        cell 1ms
        step   |............|............|
        main   |oSSSSSSSSSSS|oSSSSSSSSSSS|
        gpu 7  |KKKKKKKKKKKK|KKKKKKKKKKKK|
        gpu 9  |qqqqqqqq....|qqqqqqqq....|
    """
    assert find(PageableCopies, trace, legend=LEGEND) == ()


def test_copies_at_link_bandwidth_are_left_alone() -> None:
    fast = LEGEND | {"q": to_device(1, 96_000_000)}  # 12 GB/s already
    assert find(PageableCopies, SLOW, legend=fast) == ()


def test_unknown_host_memory_is_not_applicable() -> None:
    unknown = copy("MemcpyH2D", CopyDirection.HOST_TO_DEVICE, size_bytes=48_000_000)
    assert find(PageableCopies, SLOW, legend={"q": unknown}) is None


def test_just_below_and_just_above_the_limit() -> None:
    def found(value: float) -> int:  # 4 of 12 ms
        settings = {"minimum_share": value}
        return len(find(PageableCopies, SLOW, settings=settings, legend=LEGEND) or ())

    assert (found(0.33), found(0.34)) == (1, 0)
