from __future__ import annotations

from pathlib import Path

import pytest

from scale_inputs import exponent
from scaled_inputs import DIMENSIONS
from tb_perfadvisor import analyze
from tb_perfadvisor.api.training import describe_runs

EVENT_FILES = [name for name, each in DIMENSIONS.items() if each.program == "describe_runs.py"]


def test_the_exponent_of_growth() -> None:
    # Four times the items: four times the time is linear, 16 times is quadratic.
    assert exponent([(100, 1.0), (200, 2.0), (400, 4.0)]) == pytest.approx(1.0)
    assert exponent([(100, 1.0), (400, 16.0)]) == pytest.approx(2.0)
    assert exponent([(100, 0.01), (400, 0.04)]) is None  # too short to tell


@pytest.mark.parametrize("name", [name for name in DIMENSIONS if name not in EVENT_FILES])
def test_every_dimension_is_a_profile_without_failing_rules(name: str, tmp_path: Path) -> None:
    DIMENSIONS[name].write(40, tmp_path)
    report = analyze(tmp_path)
    assert not [each.rule_id for each in report.outcomes if each.status == "failed"]


@pytest.mark.parametrize("name", EVENT_FILES)
def test_every_dimension_of_event_files_is_described(name: str, tmp_path: Path) -> None:
    DIMENSIONS[name].write(40, tmp_path)
    assert all(run.training is not None for run in describe_runs(tmp_path))
