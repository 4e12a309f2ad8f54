"""What ticked findings save together, from what is stored of an analysis."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from tb_perfadvisor.api.analyses import load
from tb_perfadvisor.engine.analysis import Analysis, CombinedSaving
from tb_perfadvisor.engine.analyze import analyze_run
from tb_perfadvisor.engine.change_model import (
    MeasuredSaving,
    decode_model,
    encode_model,
)
from tb_perfadvisor.engine.config import Config
from tb_perfadvisor.errors import PerfAdvisorError
from tb_perfadvisor.testing import draw, run_of
from tests.support.ticked import compare_combinations, stored_model

DEMO_LOGS = Path(__file__).parents[2] / "demo_logs"
RUNS = sorted(path.name for path in DEMO_LOGS.iterdir() if path.is_dir() and path.name != "record")

# Each step of 10 ms waits 4 ms for input; after it, 1 ms of operators launches 5 ms of device work.
SLOW = """
    cell 1ms
    step   |..........|..........|..........|
    main   |DDDDoo....|DDDDoo....|DDDDoo....|
    gpu 7  |.....KKKKK|.....KKKKK|.....KKKKK|
"""


@pytest.mark.parametrize("run", RUNS)
def test_stored_combinations_are_the_engines(run: str) -> None:
    analysis = analyze_run(load(DEMO_LOGS / run)[0], Config())
    assert bool(compare_combinations(analysis)) == bool(analysis.findings)
    everything = stored_model(analysis).combined(range(len(analysis.findings)))
    assert analysis.combined is None or everything == analysis.combined


@pytest.fixture(scope="module")
def analysis() -> Analysis:
    return analyze_run(run_of(draw(SLOW)), Config())


def places_of(analysis: Analysis, *rules: str) -> list[int]:
    return [at for at, entry in enumerate(analysis.findings) if entry.rule.id in rules]


def test_a_part_adds_nothing_to_what_it_explains(analysis: Analysis) -> None:
    model = stored_model(analysis)
    (stall,) = places_of(analysis, "input-stall")
    parts = [at for at, entry in enumerate(analysis.findings) if entry.refines == "input-stall"]
    assert parts
    alone = model.combined([stall])
    # 4 ms of each of three steps.
    assert alone.high_ns == 12_000_000
    for part in parts:
        assert model.combined([stall, part]) == alone
        assert model.combined([part]).expected_ns <= alone.expected_ns
    assert model.combined(parts).high_ns <= alone.high_ns


def test_a_part_saves_at_most_what_it_explains_saves(analysis: Analysis) -> None:
    model = stored_model(analysis)
    (stall,) = places_of(analysis, "input-stall")
    change = model.changes[stall]
    part = replace(model, changes=(change, replace(change, refines=0)))
    assert part.combined([1]) == CombinedSaving(6_000_000, 9_000_000, 12_000_000)
    # What it explains turns out to save 10 % of 30 ms.
    measured = MeasuredSaving(0, 0.1, 0.1, 0.1)
    assert part.combined([1], [measured]) == CombinedSaving(3_000_000, 3_000_000, 3_000_000)


def test_measured_counts_in_place_of_predicted(analysis: Analysis) -> None:
    model = stored_model(analysis)
    (stall,) = places_of(analysis, "input-stall")
    # 20 % of 30 ms, and from 10 to 30 %.
    measured = MeasuredSaving(stall, 0.1, 0.2, 0.3)
    assert model.combined([stall], [measured]) == CombinedSaving(3_000_000, 6_000_000, 9_000_000)
    in_vain = MeasuredSaving(stall, -0.01, 0.0, 0.01)
    assert model.combined([stall], [in_vain]) == CombinedSaving(0, 0, 300_000)
    # More than the time that it claims: 60 % of 30 ms are 18 of 12 ms.
    beyond = MeasuredSaving(stall, 0.5, 0.6, 0.7)
    assert model.combined([stall], [beyond]).expected_ns == 18_000_000


def test_nothing_chosen_saves_nothing(analysis: Analysis) -> None:
    assert stored_model(analysis).combined([]).expected_ns == 0


@pytest.mark.parametrize("content", [b"", b"x", encode_model.__doc__.encode()])  # type: ignore[union-attr]
def test_damaged_model_is_an_error(content: bytes) -> None:
    with pytest.raises(PerfAdvisorError):
        decode_model(content)
