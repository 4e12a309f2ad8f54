"""The programs by family: labels name rules, and the lot spreads them over the generations."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from compiled_pairs.catalog import PAIRS, generations_of, pair_named
from compiled_pairs.families.catalog import FAMILY_PAIRS, GENERATIONS
from compiled_pairs.pair import CompiledPair
from compiled_pairs.second_families.catalog import SECOND_FAMILY_PAIRS
from tb_perfadvisor.rules.registry import all_rules

BATCHES = pytest.mark.parametrize("pairs", [FAMILY_PAIRS, SECOND_FAMILY_PAIRS])


def test_names_are_unique_over_all_batches() -> None:
    every = (*PAIRS, *FAMILY_PAIRS, *SECOND_FAMILY_PAIRS)
    assert len({pair.name for pair in every}) == len(every)
    assert pair_named("tiled-prompt").kind == "cause"


@BATCHES
def test_labels_are_rules(pairs: tuple[CompiledPair, ...]) -> None:
    known = {rule.id for rule in all_rules()}
    assert all(bool(pair.first) == (pair.kind == "cause") for pair in pairs)
    assert {rule for pair in pairs for rule in (*pair.first, *pair.still_true)} <= known


@BATCHES
def test_each_batch_has_its_share_of_every_generation(pairs: tuple[CompiledPair, ...]) -> None:
    counts = Counter(generations_of(pair)[0] for pair in pairs)
    assert set(counts) == set(GENERATIONS)
    assert min(counts.values()) >= len(pairs) // 8


@BATCHES
def test_programs_exist(pairs: tuple[CompiledPair, ...]) -> None:
    folder = Path(__file__).resolve().parents[2] / "benchmarks" / "compiled_pairs"
    for pair in pairs:
        path, _, function = pair.program.rpartition(".")
        text = (folder / f"{path.replace('.', '/')}.py").read_text("utf-8")
        assert f"\ndef {function}(role: Role)" in text
