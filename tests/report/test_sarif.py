"""SARIF against what its schema requires, written down here from the standard (2.1.0)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tb_perfadvisor.api import load
from tb_perfadvisor.engine.config import Config
from tb_perfadvisor.report import build_report, document, encode
from tb_perfadvisor.report.model import Rejected
from tb_perfadvisor.report.sarif import message
from tb_perfadvisor.testing import draw, run_of

DEMO_LOGS = Path(__file__).resolve().parents[2] / "demo_logs"

# Of each object that we write: the properties that the standard requires, and those it knows of
# which we use. Anything else would be refused (additionalProperties is false everywhere).
PARTS: dict[str, tuple[set[str], set[str]]] = {
    "log": ({"version", "runs"}, {"$schema"}),
    "run": ({"tool"}, {"originalUriBaseIds", "invocations", "columnKind", "results"}),
    "tool": ({"driver"}, set()),
    "driver": ({"name"}, {"version", "rules"}),
    "rule": (
        {"id"},
        {"name", "shortDescription", "fullDescription", "help", "defaultConfiguration"}
        | {"properties"},
    ),
    "invocation": ({"executionSuccessful"}, {"toolExecutionNotifications"}),
    "notification": ({"message"}, {"descriptor", "level"}),
    "result": (
        {"message"},
        {"ruleId", "ruleIndex", "kind", "level", "locations", "partialFingerprints", "rank"}
        | {"properties"},
    ),
}
LEVELS = {"none", "note", "warning", "error"}


def check(part: str, content: dict[str, Any]) -> None:
    required, known = PARTS[part]
    assert required <= set(content), part
    assert set(content) <= required | known, part


def validated(text: str) -> dict[str, Any]:
    log: dict[str, Any] = json.loads(text)
    check("log", log)
    assert log["version"] == "2.1.0"
    (run,) = log["runs"]
    check("run", run)
    assert run["columnKind"] in {"utf16CodeUnits", "unicodeCodePoints"}
    check("tool", run["tool"])
    driver = run["tool"]["driver"]
    check("driver", driver)
    for rule in driver["rules"]:
        check("rule", rule)
        assert rule["defaultConfiguration"]["level"] in LEVELS
        for words in ("shortDescription", "fullDescription", "help"):
            assert rule[words]["text"]
    assert len({rule["id"] for rule in driver["rules"]}) == len(driver["rules"])
    for invocation in run["invocations"]:
        check("invocation", invocation)
        for notification in invocation["toolExecutionNotifications"]:
            check("notification", notification)
            assert notification["level"] in LEVELS
            assert notification["message"]["text"]
    for result in run["results"]:
        check("result", result)
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
    report = build_report(run, Config())
    results = validated(encode(report, "sarif"))["results"]
    assert [one["ruleId"] for one in results] == [one.rule_id for one in report.findings]


SLOW = """
    cell 1ms
    step   |..........|..........|
    main   |DDDDoo....|DDDDoo....|
    gpu 7  |.....KKKKK|.....KKKKK|
"""


def test_a_finding_is_a_result() -> None:
    run = run_of(draw(SLOW, device="NVIDIA H100 80GB HBM3"), name="resnet")
    report = build_report(run, Config(select=("input-stall",)))
    written = validated(encode(report, "sarif"))
    (result,) = written["results"]
    # 4 of 10 ms wait for input: two fifths of the step, a high severity.
    assert result["level"] == "error"
    assert result["rank"] == pytest.approx(40, abs=0.1)
    assert result["message"]["text"].startswith("resnet: Feed the device without making it wait. ")
    assert result["properties"]["saving"]["expected_ns"] == pytest.approx(4_000_000, rel=1e-3)
    (rule,) = written["tool"]["driver"]["rules"]
    assert rule["id"] == "input-stall"
    assert rule["help"]["markdown"].startswith("# input-stall")
    assert rule["properties"]["tags"] == ["performance", "input"]


def test_a_new_recording_of_the_run_has_the_same_fingerprint() -> None:
    prints = []
    for name, session in (("a", "1"), ("a", "2"), ("b", "1")):
        run = run_of(draw(SLOW), name=name)
        report = build_report(run, Config(select=("input-stall",)))
        again = msgspec.structs.replace(report, session=session)
        content = json.loads(encode(document([again]), "sarif"))
        prints.append(content["runs"][0]["results"][0]["partialFingerprints"]["ruleAndRun/v1"])
    assert prints[0] == prints[1] != prints[2]


def test_files_that_were_not_read_are_told() -> None:
    written = validated(encode(document([], [Rejected(path="a{0}.pb", reason="cut")]), "sarif"))
    (invocation,) = written["invocations"]
    assert invocation["executionSuccessful"] is False
    (told,) = invocation["toolExecutionNotifications"]
    assert told["message"]["text"] == "a{{0}}.pb: cut"


def test_names_are_neither_links_nor_placeholders() -> None:
    assert message("k{0} [x](http://e) \\ \x1b")["text"] == (
        "k{{0}} \\[x\\](http://e) \\\\ \N{REPLACEMENT CHARACTER}"
    )
