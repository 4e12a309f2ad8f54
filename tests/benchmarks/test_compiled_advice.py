"""The compiled pairs: their halves are those drawn, and verdicts follow the compiler's gains."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import pytest

from compiled_advice import CompiledCase, cases, promises, summary_table
from compiled_pairs.catalog import (
    DRAWN_PAIRS,
    GENERATIONS,
    PAIRS,
    generations_of,
    pair_named,
    split_of,
)
from tb_perfadvisor import analyze
from tb_perfadvisor.report.report import Report
from tb_perfadvisor.testing import draw

# As drawn before anything was compiled: half of each kind, and whatever names follow.
TEST_TRAPS = {
    *("decode-product", "heads-of-64", "product-k-130", "product-n-130", "slices-of-100"),
    "vocabulary-50257",
}


def test_names_are_unique_and_causes_are_labeled() -> None:
    assert len({pair.name for pair in PAIRS}) == len(PAIRS)
    assert all(bool(pair.first) == (pair.kind == "cause") for pair in PAIRS)
    assert sum(pair.kind == "cause" for pair in PAIRS) >= 25


def test_the_halves_are_those_drawn() -> None:
    drawn = {p.name for p in PAIRS if p.kind == "trap" and split_of(p) == "test"}
    assert drawn == TEST_TRAPS
    kinds = Counter(pair.kind for pair in PAIRS if split_of(pair) == "test" or pair.has_shown_a_bug)
    assert kinds == {"cause": 18, "trap": 6, "healthy": 2}


def test_pairs_are_spread_over_the_generations() -> None:
    first = Counter(generations_of(pair)[0] for pair in DRAWN_PAIRS)
    assert set(first) == set(GENERATIONS)
    assert max(first.values()) - min(first.values()) <= 1
    others = [pair for pair in PAIRS if not pair.generations]
    assert all(set(generations_of(pair)) == set(GENERATIONS) for pair in others)


def compiled(directory: Path, name: str, slow_ns: float, fixed_ns: float) -> list[CompiledCase]:
    for role, step_ns in (("slow", slow_ns), ("fixed", fixed_ns)):
        folder = directory / "v6e" / name / role
        folder.mkdir(parents=True)
        (folder / "step.json").write_text(json.dumps({"step_ns": step_ns}))
    return list(cases(directory))


def test_a_cause_is_one_only_where_the_compiler_says_so(tmp_path: Path) -> None:
    slow, fixed = compiled(tmp_path / "much", "max-pool", 100.0, 80.0)
    assert slow.is_cause
    assert slow.gain_share == pytest.approx(0.2)
    assert not fixed.is_cause
    little, _ = compiled(tmp_path / "little", "max-pool", 100.0, 98.0)
    assert not little.is_cause
    assert little.gain_share == pytest.approx(0.02)


def test_the_gain_is_for_equal_numbers_of_samples(tmp_path: Path) -> None:
    # Eight samples in the time of one: seven of eight parts are saved.
    slow, _ = compiled(tmp_path, "batch-1", 100.0, 100.0)
    assert slow.gain_share == pytest.approx(7 / 8)


SLOW = """
    cell 1ms
    step   |..........|..........|
    main   |DDDDoo....|DDDDoo....|
    gpu 7  |.....KKKKK|.....KKKKK|
"""


def report() -> Report:
    return analyze(draw(SLOW))


def test_a_trap_promises_too_much_beyond_the_compilers_gain(tmp_path: Path) -> None:
    trap, _ = compiled(tmp_path, "depthwise", 100.0, 90.0)
    found = promises(trap, report())
    # 3 of 10 ms are expected; 10 % and 3 points are allowed.
    assert [(promise.rule_id, promise.severity) for promise in found] == [("input-stall", "high")]
    assert found[0].expected_share == pytest.approx(0.3)


def test_nothing_is_too_much_for_a_cause(tmp_path: Path) -> None:
    cause, _ = compiled(tmp_path, "max-pool", 100.0, 50.0)
    assert promises(cause, report()) == ()


def test_the_target_is_stated() -> None:
    assert "≥ 85 %" in list(summary_table([]))[-1]


def test_programs_exist() -> None:
    folder = Path(__file__).resolve().parents[2] / "benchmarks" / "compiled_pairs"
    for pair in PAIRS:
        module, _, function = pair.program.partition(".")
        text = (folder / f"{module}.py").read_text("utf-8")
        assert re.search(rf"^def {function}\(\s*role: Role", text, re.MULTILINE)
    assert pair_named("depthwise").kind == "trap"
