from __future__ import annotations

import pytest

from tb_perfadvisor.rules.xla.costly_operations import TransposeOverhead
from tb_perfadvisor.testing import check_rule, find
from tb_perfadvisor.testing.symbols import xla_op
from tests.support.xla_operation import FIXED, FUSION, SLOW, check_limit, fires, legend, saved_ns

MATCHING = (
    (
        "%copy.488 = f32[1,512,7168]{2,0,1:T(1,128)} copy(f32[1,512,7168]{2,1,0:T(8,128)}"
        " %fusion.636)",
        "jit(train_step)/dynamic_update_slice",
    ),
    (
        "%transpose.1 = f32[1024,1024]{1,0:T(8,128)} transpose(f32[1024,1024]{1,0:T(8,128"
        ")} %p0), dimensions={1,0}",
        "",
    ),
)
OTHER = (
    (
        "%copy.2 = f32[1024,1024]{1,0:T(8,128)S(1)} copy(f32[1024,1024]{1,0:T(8,128)} %p0)",
        "",
    ),
    (FUSION, "jit(f)/transpose"),
)


def test_saves_what_the_fix_saves() -> None:
    checked = check_rule(
        TransposeOverhead, slow=SLOW, fixed=FIXED, saves="4ms", legend=legend(*MATCHING[1])
    )
    # Half of the 8 ms in both steps is expected.
    assert saved_ns(checked) == (0, 4_000_000, 8_000_000)


def test_how_many_copies_can_be_avoided_is_unknown() -> None:
    (finding,) = find(TransposeOverhead, SLOW, legend=legend(*MATCHING[0])) or ()
    assert finding.saving is not None
    assert finding.saving.is_unknown
    assert finding.saving.high_ns == 8_000_000
    assert finding.summary.endswith("Nothing in the profile tells how much of it can be avoided.")


# As libtpu 0.0.52 copies the result of a product whose axes the program swaps.
SWAPPED = (
    "%copy = bf16[512,64,1024]{2,1,0:T(8,128)(2,1)} copy("
    "bf16[512,64,1024]{2,0,1:T(8,128)(2,1)S(1)} %fusion.6)"
)


def test_half_of_a_copy_that_a_transposed_result_needs_is_expected_to_go() -> None:
    slow = SLOW.replace("cell 1ms", "cell 47us")
    symbols = {"s": xla_op("copy", SWAPPED, transposed=1)}
    (finding,) = find(TransposeOverhead, slow, legend=symbols, device="TPU v5e") or ()
    assert finding.saving is not None
    assert not finding.saving.is_unknown
    # 188 us in each of two steps, of which 512 x 64 x 1024 numbers of 16 bits need 96.4 us at 85 %
    # of 819 GB/s. Half would leave 94 us, which is less.
    assert finding.saving.expected_ns == pytest.approx(2 * (188_000 - 96_400), abs=100)
    assert finding.saving.high_ns == 376_000


def test_a_copy_to_the_chip_at_the_speed_of_memory_is_a_prefetch() -> None:
    slow = SLOW.replace("cell 1ms", "cell 24us")
    symbols = {"s": xla_op("copy", SWAPPED, transposed=1)}
    # 96 us are less than 67.1 MB take at 85 % of 819 GB/s: 96.4 us.
    assert find(TransposeOverhead, slow, legend=symbols, device="TPU v5e") == ()


@pytest.mark.parametrize(("text", "path"), MATCHING)
def test_fires_on_matching_operations(text: str, path: str) -> None:
    assert fires(TransposeOverhead, text, path)


@pytest.mark.parametrize(("text", "path"), OTHER)
def test_ignores_other_operations(text: str, path: str) -> None:
    assert not fires(TransposeOverhead, text, path)


def test_fires_only_above_the_limit() -> None:
    check_limit(TransposeOverhead, *MATCHING[0])
