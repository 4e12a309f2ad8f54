"""Checks SARIF against Microsoft's object model of the standard (2.1.0)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import attr
import msgspec
import pytest
import sarif_om

from tb_perfadvisor import analyze, load
from tb_perfadvisor.contract.model import Rejected
from tb_perfadvisor.engine.config import Config
from tb_perfadvisor.report.formats.render import document, render
from tb_perfadvisor.report.formats.sarif import message
from tb_perfadvisor.testing import draw, run_of

DEMO_LOGS = Path(__file__).resolve().parents[2] / "demo_logs"

# What each property of an object holds, as far as we write it. Its names and which of them are
# required come from the model: anything else would be refused (additionalProperties is false).
HOLDS: dict[str, type] = {
    "runs": sarif_om.Run,
    "tool": sarif_om.Tool,
    "driver": sarif_om.ToolComponent,
    "rules": sarif_om.ReportingDescriptor,
    "shortDescription": sarif_om.MultiformatMessageString,
    "fullDescription": sarif_om.MultiformatMessageString,
    "help": sarif_om.MultiformatMessageString,
    "defaultConfiguration": sarif_om.ReportingConfiguration,
    "invocations": sarif_om.Invocation,
    "toolExecutionNotifications": sarif_om.Notification,
    "descriptor": sarif_om.ReportingDescriptorReference,
    "message": sarif_om.Message,
    "description": sarif_om.Message,
    "results": sarif_om.Result,
    "locations": sarif_om.Location,
    "physicalLocation": sarif_om.PhysicalLocation,
    "artifactLocation": sarif_om.ArtifactLocation,
    "region": sarif_om.Region,
}
# Maps with keys of our choice.
FREE = {"properties", "partialFingerprints"}
LEVELS = {"none", "note", "warning", "error"}


def check(model: type, content: dict[str, Any]) -> None:
    """Check that an object has all required and no unknown properties, recursively."""
    fields = {field.metadata["schema_property_name"]: field for field in attr.fields(model)}
    required = {name for name, field in fields.items() if field.default is attr.NOTHING}
    assert required <= set(content), model.__name__
    assert set(content) <= set(fields), model.__name__
    for name, value in content.items():
        if name == "originalUriBaseIds":
            for location in value.values():
                check(sarif_om.ArtifactLocation, location)
        elif name in HOLDS:
            for item in value if isinstance(value, list) else [value]:
                check(HOLDS[name], item)
        else:
            assert name in FREE or not isinstance(value, dict), name


def validated(text: str) -> dict[str, Any]:
    log: dict[str, Any] = json.loads(text)
    check(sarif_om.SarifLog, log)
    assert log["version"] == "2.1.0"
    (run,) = log["runs"]
    assert run["columnKind"] in {"utf16CodeUnits", "unicodeCodePoints"}
    driver = run["tool"]["driver"]
    for rule in driver["rules"]:
        assert rule["defaultConfiguration"]["level"] in LEVELS
        for words in ("shortDescription", "fullDescription", "help"):
            assert rule[words]["text"]
    assert len({rule["id"] for rule in driver["rules"]}) == len(driver["rules"])
    for invocation in run["invocations"]:
        for notification in invocation["toolExecutionNotifications"]:
            assert notification["level"] in LEVELS
            assert notification["message"]["text"]
    for result in run["results"]:
        assert result["level"] in LEVELS
        assert result["message"]["text"]
        assert driver["rules"][result["ruleIndex"]]["id"] == result["ruleId"]
        assert 0 <= result.get("rank", 0) <= 100
        (location,) = result["locations"]
        artifact = location["physicalLocation"]["artifactLocation"]
        assert artifact["uriBaseId"] in run["originalUriBaseIds"]
        assert location["physicalLocation"]["region"]["startLine"] >= 1
    return run  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "name", sorted(path.parent.name for path in DEMO_LOGS.glob("*/label.json"))
)
def test_every_demo_profile_is_valid_sarif(name: str) -> None:
    (run,) = load(DEMO_LOGS / name)
    report = analyze(run, Config())
    results = validated(render(report, "sarif"))["results"]
    assert [one["ruleId"] for one in results] == [one.rule_id for one in report.findings]


SLOW = """
    cell 1ms
    step   |..........|..........|
    main   |DDDDoo....|DDDDoo....|
    gpu 7  |.....KKKKK|.....KKKKK|
"""


def test_a_finding_is_a_result() -> None:
    run = run_of(draw(SLOW, device="NVIDIA H100 80GB HBM3"), name="resnet")
    report = analyze(run, Config(select=("input-stall",)))
    written = validated(render(report, "sarif"))
    (result,) = written["results"]
    # 4 of 10 ms wait for input, of which 3 are expected: 30 % of the step, so the severity is high.
    assert result["level"] == "error"
    assert result["rank"] == pytest.approx(30, abs=0.1)
    assert result["message"]["text"].startswith(
        "resnet: Feed the device without making it wait: DataLoader. "
    )
    assert result["properties"]["saving"]["expected_ns"] == pytest.approx(3_000_000, rel=1e-3)
    (rule,) = written["tool"]["driver"]["rules"]
    assert rule["id"] == "input-stall"
    assert rule["help"]["markdown"].startswith("# input-stall")
    assert rule["properties"]["tags"] == ["performance", "input"]


def test_a_new_recording_of_the_run_has_the_same_fingerprint() -> None:
    prints = []
    for name, session in (("a", "1"), ("a", "2"), ("b", "1")):
        run = run_of(draw(SLOW), name=name)
        report = analyze(run, Config(select=("input-stall",)))
        again = msgspec.structs.replace(report, session=session)
        content = json.loads(render(document([again]), "sarif"))
        prints.append(content["runs"][0]["results"][0]["partialFingerprints"]["ruleAndRun/v1"])
    assert prints[0] == prints[1] != prints[2]


def test_unreadable_files_become_notifications() -> None:
    written = validated(render(document([], [Rejected(path="a{0}.pb", reason="cut")]), "sarif"))
    (invocation,) = written["invocations"]
    assert invocation["executionSuccessful"] is False
    (notification,) = invocation["toolExecutionNotifications"]
    assert notification["message"]["text"] == "a{{0}}.pb: cut"


def test_names_are_escaped() -> None:
    assert message("k{0} [x](http://e) \\ \x1b")["text"] == (
        "k{{0}} \\[x\\](http://e) \\\\ \N{REPLACEMENT CHARACTER}"
    )
