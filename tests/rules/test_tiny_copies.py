from __future__ import annotations

from tb_perfadvisor.rules.input.copies import TinyCopies
from tb_perfadvisor.testing import check_rule, find
from tb_perfadvisor.testing.symbols import Symbol, copy, operator
from tb_perfadvisor.trace import CopyDirection


def to_device(size_bytes: int) -> Symbol:
    return copy(
        "Memcpy HtoD (Pageable -> Device)",
        CopyDirection.HOST_TO_DEVICE,
        pageable=1,
        size_bytes=size_bytes,
    )


LEGEND = {
    "w": operator("aten::to", launches=False),
    "y": operator("aten::copy_"),
    "t": to_device(4096),
}
SLOW = """
    cell 100us
    step   |............|............|
    main   |w'''''''oSSS|w'''''''oSSS|
    main   |y'''''''....|y'''''''....|
    gpu 7  |t'''''''KKKK|t'''''''KKKK|
"""
FIXED = """
    cell 100us
    step   |.....|.....|
    main   |woSSS|woSSS|
    main   |y....|y....|
    gpu 7  |tKKKK|tKKKK|
"""


def test_saves_what_the_fix_saves() -> None:
    checked = check_rule(TinyCopies, slow=SLOW, fixed=FIXED, saves="700us", legend=LEGEND)
    assert checked.expected_ns == 700_000
    assert "7 copies per step" in checked.findings[0].summary
    assert "4.00 KiB" in checked.findings[0].summary


def test_large_copies_are_left_alone() -> None:
    assert find(TinyCopies, SLOW, legend=LEGEND | {"t": to_device(1 << 20)}) == ()


def test_copies_with_work_in_between_are_left_alone() -> None:
    trace = """
        cell 100us
        step   |................|................|
        main   |yoyoyoyoyoyoyoyo|yoyoyoyoyoyoyoyo|
        gpu 7  |tKtKtKtKtKtKtKtK|tKtKtKtKtKtKtKtK|
    """
    assert find(TinyCopies, trace, legend=LEGEND) == ()


def test_just_below_and_just_above_the_limits() -> None:
    def found(name: str, value: float) -> int:
        return len(find(TinyCopies, SLOW, settings={name: value}, legend=LEGEND) or ())

    assert (found("minimum_count", 7), found("minimum_count", 7.5)) == (1, 0)
    # 7 of 12 cells.
    assert (found("minimum_share", 0.58), found("minimum_share", 0.59)) == (1, 0)
    assert (found("tiny_bytes", 4096), found("tiny_bytes", 4095)) == (1, 0)


def test_programs_without_a_framework_have_arrays() -> None:
    (finding,) = find(TinyCopies, SLOW, legend=LEGEND, framework="none") or ()
    assert finding.title == "Copy small arrays together"
