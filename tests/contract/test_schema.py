"""The committed schema matches the types, and so do real documents."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from scripts.schema import SCHEMA_PATH, build_schema, encode_schema, main
from tb_perfadvisor.contract.model import Report
from tb_perfadvisor.report.views.steps import StepsView

SAMPLES = Path(__file__).parents[2] / "frontend" / "dev" / "samples"


def test_the_committed_schema_is_current() -> None:
    assert SCHEMA_PATH.read_text(encoding="utf-8") == encode_schema()
    assert main(["--check"]) == 0


def test_check_names_the_command_to_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("scripts.schema.SCHEMA_PATH", tmp_path / "schema.json")
    assert main(["--check"]) == 1
    assert "python scripts/schema.py" in capsys.readouterr().err
    assert main([]) == 0
    assert main(["--check"]) == 0


def test_every_reference_is_defined() -> None:
    text = json.dumps(build_schema())
    definitions = build_schema()["$defs"]
    named = {part.split('"')[0] for part in text.split("#/$defs/")[1:]}
    assert named <= set(definitions)
    assert {"Document", "Report", "FindingInfo", "StepsView", "ComparisonDocument"} <= set(
        definitions
    )


def test_evidence_is_tagged_by_its_kind() -> None:
    definitions = build_schema()["$defs"]
    tags = {
        name: definitions[name]["properties"]["kind"]["enum"]
        for name in ("EventsEvidence", "SpanEvidence", "TableEvidence", "SeriesEvidence")
    }
    assert tags == {
        "EventsEvidence": ["events"],
        "SpanEvidence": ["span"],
        "TableEvidence": ["table"],
        "SeriesEvidence": ["series"],
    }


@pytest.mark.parametrize(
    "path", sorted(SAMPLES.glob("*.report.json")), ids=lambda path: path.name.split(".")[0]
)
def test_samples_of_the_frontend_match_the_types(path: Path) -> None:
    report = msgspec.json.decode(path.read_bytes(), type=Report)
    overview = report.overview
    assert sum(part.total_ns for part in overview.breakdown) == overview.window_ns
    steps = path.with_name(path.name.replace(".report.", ".steps."))
    if steps.is_file():
        view = msgspec.json.decode(steps.read_bytes(), type=StepsView)
        for step, duration_ns in enumerate(view.duration_ns):
            assert sum(per_cause[step] for per_cause in view.total_ns) == duration_ns
