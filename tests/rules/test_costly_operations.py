"""The rules that are entries of `costly_operations.toml`, by the cases in the file beside this."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tb_perfadvisor.rules.registry import find_rule
from tb_perfadvisor.rules.xla.costly_operations import RULES
from tb_perfadvisor.testing import check_rule, find
from tb_perfadvisor.testing.symbols import xla_op
from tb_perfadvisor.toml_files import parse
from tests.support.xla_operation import FIXED, FUSION, SLOW, check_limit, fires, legend, saved_ns

CASES: dict[str, dict[str, Any]] = parse(
    Path(__file__).with_name("costly_operations.toml").read_text(encoding="utf-8")
)
EACH = pytest.mark.parametrize("rule_id", CASES)
MaxPoolGradient = find_rule("max-pool-gradient")


def operation(case: dict[str, str]) -> tuple[str, str]:
    return case.get("text", FUSION), case.get("path", "")


def test_each_entry_has_cases_and_each_case_an_entry() -> None:
    assert set(CASES) == {rule.id for rule in RULES}


@EACH
def test_saves_what_the_fix_saves(rule_id: str) -> None:
    cases = CASES[rule_id]
    framework = {"framework": cases["framework"]} if "framework" in cases else {}
    checked = check_rule(
        find_rule(rule_id),
        slow=SLOW,
        fixed=FIXED,
        saves="4ms",
        legend=legend(*operation(cases["found"][0])),
        **framework,
    )
    assert list(saved_ns(checked)) == cases["saves_ns"]


@EACH
def test_finds_and_passes(rule_id: str) -> None:
    rule, cases = find_rule(rule_id), CASES[rule_id]
    assert [case for case in cases["found"] if not fires(rule, *operation(case))] == []
    assert [case for case in cases["passed"] if fires(rule, *operation(case))] == []


@EACH
def test_fires_only_above_the_limit(rule_id: str) -> None:
    check_limit(find_rule(rule_id), *operation(CASES[rule_id]["found"][0]))


def test_at_best_what_reads_the_gradient_is_fused_with_what_computes_it() -> None:
    name, text = "select-and-scatter.1", CASES["max-pool-gradient"]["found"][0]["text"]
    array = "f32[32,56,56,128]{3,0,2,1:T(8,128)}"
    reader = f"%fusion.9 = {array} fusion({array} %{name}), kind=kLoop, calls=%fused_computation.9"
    symbols = legend(text, "") | {"X": xla_op("fusion.9", reader)}
    (finding,) = find(MaxPoolGradient, SLOW, legend=symbols) or ()
    assert finding.saving is not None
    # 4 ms in each of two steps, and half of the reader's 6 ms: it reads as much as it writes.
    assert finding.saving.high_ns == 2 * (4_000_000 + 3_000_000)
    assert finding.saving.expected_ns == 4_000_000
    assert finding.summary.startswith("4.00 ms of each step (40.0 %)")


def test_a_reader_takes_at_least_as_long_as_its_product() -> None:
    name, text = "select-and-scatter.1", CASES["max-pool-gradient"]["found"][0]["text"]
    array = "f32[32,56,56,128]{3,0,2,1:T(8,128)}"
    product = (
        f"%convolution.1 = {array} convolution({array} %x,"
        " f32[3,3,128,128]{3,2,1,0:T(8,128)} %w), window={size=3x3 pad=1_1x1_1},"
        " dim_labels=b01f_01io->b01f"
    )
    reader = (
        f"%fusion.9 = {array} fusion({array} %{name}), kind=kOutput, calls=%fused_computation.9"
    )
    # 2 x 32 x 56 x 56 x 128 x 9 x 128 = 29.6 GFLOP take 150 us at 197 TFLOP/s, of 600 us.
    for cell, gone_ns in (("100us", 300_000), ("30us", 180_000 - 150_264)):
        slow = SLOW.replace("cell 1ms", f"cell {cell}")
        symbols = legend(text, "") | {"X": xla_op("fusion.9", reader, product=product)}
        (finding,) = find(MaxPoolGradient, slow, legend=symbols, device="TPU v5e") or ()
        assert finding.saving is not None
        own_ns = 400_000 if cell == "100us" else 120_000
        assert finding.saving.high_ns == pytest.approx(2 * (own_ns + gone_ns), rel=0.01)
