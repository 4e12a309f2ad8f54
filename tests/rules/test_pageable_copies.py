from __future__ import annotations

import pytest

from tb_perfadvisor.engine.analyze import analyze_run
from tb_perfadvisor.engine.config import Config
from tb_perfadvisor.engine.ranking import first_finding
from tb_perfadvisor.rules.input.copies import PageableCopies
from tb_perfadvisor.testing import check_rule, draw, find, run_of
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
    # High: other work hides the copies. Low: over a link of half the bandwidth nothing is gained.
    assert (finding.saving.low_ns, finding.saving.high_ns) == (0, 2 * 8_000_000)
    assert "6.00 GB/s, where pinned memory reaches 12.0 GB/s" in finding.summary


def test_uses_the_bandwidth_of_pinned_copies_in_the_profile() -> None:
    # 24 GB/s: 24 MB in a millisecond.
    trace = SLOW.replace("qqqqqqqqKKKK", "qqqqqqqqhKKK")
    legend = LEGEND | {"h": to_device(0, 24_000_000)}
    (finding,) = find(PageableCopies, trace, legend=legend) or ()
    assert finding.saving is not None
    assert finding.saving.expected_ns == 2 * (8_000_000 - 2_000_000)
    assert finding.saving.low_ns == finding.saving.expected_ns  # this link is known


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


# 20 MiB go to an H100, as measured on one: from pageable memory at 25 GB/s in 0.83 of 1.09 ms,
# while the call holds up the host. From pinned memory the step takes 0.51 ms: 0.38 ms at 55.6 GB/s,
# in which the host launches the 13 kernels, and 0.13 ms of kernels.
H100_SLOW = f"""
    cell 10us
    step   |{"." * 109}|{"." * 109}|
    main   |{"L" * 83}{"o." * 13}|{"L" * 83}{"o." * 13}|
    gpu 7  |{"q" * 83}{".K" * 13}|{"q" * 83}{".K" * 13}|
"""
H100_FIXED = f"""
    cell 10us
    step   |{"." * 51}|{"." * 51}|
    main   |L{"o." * 13}{"." * 24}|L{"o." * 13}{"." * 24}|
    gpu 7  |{"h" * 38}K{"'" * 12}|{"h" * 38}K{"'" * 12}|
"""
H100_LEGEND = {"q": to_device(1, 20 << 20), "h": to_device(0, 20 << 20)}
H100 = {"legend": H100_LEGEND, "device": "NVIDIA H100 80GB HBM3"}


def test_expects_what_the_link_of_the_device_reaches() -> None:
    checked = check_rule(
        PageableCopies, slow=H100_SLOW, fixed=H100_FIXED, saves="580us", exactly=False,
        scales=False, **H100,
    )  # fmt: skip
    # Replayed: the host launches the kernels while the copy runs.
    assert checked.expected_ns == pytest.approx(580_000, rel=0.01)
    (finding,) = find(PageableCopies, H100_SLOW, **H100) or ()
    assert finding.saving is not None
    # 20,971,520 bytes at 55.6 GB/s take 377 us, and over a link of half the bandwidth 754.
    assert finding.saving.low_ns == pytest.approx(2 * 76_000, rel=0.02)
    assert finding.saving.high_ns == 2 * 830_000


def test_pinning_ranks_first() -> None:
    analysis = analyze_run(run_of(draw(H100_SLOW, **H100)), Config())
    index = first_finding(analysis.findings)
    assert index is not None
    first = analysis.findings[index]
    assert first.rule.id == "pageable-copies"
    assert first.finding.saving is not None
    assert first.finding.saving.expected_ns == pytest.approx(2 * 580_000, rel=0.01)


def test_a_superchip_without_a_known_link_falls_back_to_the_limit() -> None:
    gh200 = {"legend": H100_LEGEND, "device": "NVIDIA GH200 480GB"}
    assert find(PageableCopies, H100_SLOW, **gh200) == ()  # 25 GB/s is above 12 GB/s


def test_programs_without_a_framework_have_no_batches() -> None:
    (finding,) = find(PageableCopies, SLOW, legend=LEGEND, framework="none") or ()
    assert finding.title == "Copy data from pinned memory"
