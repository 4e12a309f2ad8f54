"""The texts are those of libtpu 0.0.52 for a TPU v5e."""

from __future__ import annotations

import pytest

from tb_perfadvisor.rules.xla.costly_operations import OneHotProduct
from tb_perfadvisor.testing import Checked, check_rule, find
from tb_perfadvisor.testing.symbols import Symbol, xla_op
from tests.support.xla_operation import FIXED, SLOW

FUSION = (
    "%fusion = bf16[16384,1024]{1,0:T(8,128)(2,1)} fusion(bf16[32768,1024]{1,0:T(8,128)(2,1)} "
    "%table, s32[16384]{0:T(1024)} %ids), kind=kOutput, calls=%fused_computation.1"
)
PRODUCT = (
    "%convolution.1 = bf16[16384,1024]{1,0:T(8,128)(2,1)} convolution(pred[16384,32768]"
    "{1,0:T(8,128)(4,1)} %iota_compare_fusion.1, bf16[32768,1024]{1,0:T(8,128)(2,1)} %fusion.2), "
    "dim_labels=bf_io->bf"
)


def legend(**columns: object) -> dict[str, Symbol]:
    return {"s": xla_op("fusion", FUSION, path="jit(f)/dot_general", **columns)}


ONE_HOT = legend(product=PRODUCT, one_hot=1)


def test_saves_what_the_fix_saves() -> None:
    checked: Checked = check_rule(
        OneHotProduct, slow=SLOW, fixed=FIXED, saves="4ms", legend=ONE_HOT
    )
    (finding,) = checked.findings
    assert finding.saving is not None
    # A sixth of the 4 ms remains in both steps.
    saving = finding.saving
    assert (saving.low_ns, saving.high_ns) == (0, 8_000_000)
    assert saving.expected_ns == pytest.approx(8_000_000 * 5 / 6, abs=2)


def test_a_gather_still_moves_the_rows() -> None:
    (finding,) = find(OneHotProduct, SLOW, legend=ONE_HOT, device="TPU v5e") or ()
    assert finding.saving is not None
    # 16,384 x 1,024 x 2 B are read and written: 67.1 MB at 819 GB/s take 81,940 ns.
    assert finding.saving.high_ns == pytest.approx(8_000_000 - 2 * 81_940, abs=4)


@pytest.mark.parametrize(("words", "is_found"), [(256, False), (264, True)])
def test_a_small_table_fits_into_the_matrix_unit(words: int, is_found: bool) -> None:
    product = PRODUCT.replace("32768", str(words))
    assert bool(find(OneHotProduct, SLOW, legend=legend(product=product, one_hot=1))) == is_found


@pytest.mark.parametrize(
    "columns",
    [
        # A small table that is looked up in the fusion of the next, larger product.
        {"product": PRODUCT, "one_hot": 0, "inside_paths": "jit(f)/jit(_one_hot)/eq\njit(f)/dot"},
        # A one-hot array that is not multiplied.
        {"inside_paths": "jit(f)/jit(_one_hot)/eq"},
    ],
)
def test_ignores_other_operations(columns: dict[str, object]) -> None:
    assert find(OneHotProduct, SLOW, legend=legend(**columns)) == ()


def test_fires_only_above_the_limit() -> None:
    # 4 of 10 ms.
    assert find(OneHotProduct, SLOW, legend=ONE_HOT, settings={"minimum_share": 0.39})
    assert find(OneHotProduct, SLOW, legend=ONE_HOT, settings={"minimum_share": 0.41}) == ()
