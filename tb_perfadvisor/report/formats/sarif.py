"""Renders findings as SARIF 2.1.0, for code scanning and similar tools.

Source: OASIS, Static Analysis Results Interchange Format (SARIF) Version 2.1.0. The
section numbers below refer to it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import Any
from urllib.parse import quote

from tb_perfadvisor.contract import model
from tb_perfadvisor.contract.names import report_name
from tb_perfadvisor.plain_text import plain, printable_json
from tb_perfadvisor.report.formats.wording import saving_text
from tb_perfadvisor.report.places import RAN_AT_START
from tb_perfadvisor.rules.base import Rule
from tb_perfadvisor.rules.page import rule_page
from tb_perfadvisor.rules.registry import all_rules

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/os/schemas/sarif-schema-2.1.0.json"
_LEVELS = {"high": "error", "medium": "warning", "low": "note"}
_NOTE_LEVELS = {"error": "error", "warning": "warning", "info": "note"}
_ROOT = "LOGDIR"
_REPOSITORY = "%SRCROOT%"
"""The name that code scanning resolves to the root of the repository."""


def render_sarif(document: model.Document) -> str:
    """The whole document as one SARIF run; its files are relative to the log directory."""
    rule_ids = {finding.rule_id for report in document.reports for finding in report.findings}
    rules = [rule for rule in all_rules() if rule.id in rule_ids]
    index = {rule.id: position for position, rule in enumerate(rules)}
    reports = document.reports
    results = [_result(finding, report, index) for report in reports for finding in report.findings]
    run = {
        "tool": {
            "driver": {
                "name": document.generator.name,
                "version": document.generator.version,
                "rules": [_rule(rule) for rule in rules],
            }
        },
        # The reader resolves the log directory: no absolute path leaves the machine (3.14.14).
        "originalUriBaseIds": {
            _ROOT: {"description": {"text": "The log directory."}},
            _REPOSITORY: {"description": {"text": "The repository that --repo names."}},
        },
        "invocations": [
            {
                "executionSuccessful": not document.rejected,
                "toolExecutionNotifications": [*_notes(reports), *_rejected(document.rejected)],
            }
        ],
        "columnKind": "unicodeCodePoints",
        "results": results,
    }
    content = {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}
    return printable_json(json.dumps(content, indent=2, ensure_ascii=False))


def message(text: str) -> dict[str, str]:
    """Text of a trace, escaped to be plain text.

    Otherwise, braces would be placeholders (3.11.5) and brackets links (3.11.6).
    """
    safe = plain(text).replace("\\", "\\\\").replace("[", "\\[").replace("]", "\\]")
    return {"text": safe.replace("{", "{{").replace("}", "}}")}


def _rule(rule: type[Rule]) -> dict[str, Any]:
    summary = (rule.__doc__ or "").strip().splitlines()[0]
    page = rule_page(rule)
    return {
        "id": rule.id,
        "name": rule.__name__,
        "shortDescription": {"text": rule.title},
        "fullDescription": {"text": summary},
        "help": {"text": page, "markdown": page},
        # The severity depends on the saving, so each result has its own level.
        "defaultConfiguration": {"level": "warning"},
        "properties": {
            "tags": ["performance", rule.category],
            "precision": "medium" if rule.is_preview else "high",
        },
    }


def _result(
    finding: model.FindingInfo, report: model.Report, index: dict[str, int]
) -> dict[str, Any]:
    saving, worker = finding.saving, report.workers[report.reference_worker]
    result: dict[str, Any] = {
        "ruleId": finding.rule_id,
        "kind": "fail",
        "level": _LEVELS[finding.severity],
        "message": message(
            f"{report_name(report)}: {finding.title}. {finding.summary}"
            f" ({saving_text(finding, report)})"
        ),
        "locations": [_code_location(finding) or _location(worker.file)],
        # Must not depend on session or numbers, so that the next recording matches.
        "partialFingerprints": {"ruleAndRun/v1": _digest(finding.rule_id, report.run)},
        "properties": {
            "run": report.run,
            "session": report.session,
            "category": finding.category,
            "refines": finding.refines,
            "isPreview": finding.is_preview,
            "saving": None
            if saving is None
            else {
                "low_ns": saving.low_ns,
                "expected_ns": saving.expected_ns,
                "high_ns": saving.high_ns,
                "share_expected": saving.share_expected,
                "basis": saving.basis,
            },
        },
    }
    if finding.rule_id in index:  # an added rule may not be installed here
        result["ruleIndex"] = index[finding.rule_id]
    if finding.remark is not None and finding.remark.wont_fix:
        result["suppressions"] = [
            {"kind": "external", "status": "accepted", "justification": plain(finding.remark.text)}
        ]
    if saving is not None:
        result["rank"] = round(100 * min(max(saving.share_expected, 0.0), 1.0), 3)  # 3.27.25
    return result


def _code_location(finding: model.FindingInfo) -> dict[str, Any] | None:
    """The costliest line of code that was found in the user's repository; None for none."""
    for place in finding.places:
        if (
            place.source is not None
            and place.source.path is not None
            and place.source.note != RAN_AT_START
        ):
            artifact = {"uri": quote(place.source.path), "uriBaseId": _REPOSITORY}
            region = {"startLine": place.line}
            return {"physicalLocation": {"artifactLocation": artifact, "region": region}}
    return None


def _location(path: str) -> dict[str, Any]:
    """Line 1 of the file: code scanning requires a line, although profiles have none to read."""
    artifact = {"uri": quote(path.replace("\\", "/")), "uriBaseId": _ROOT}
    return {"physicalLocation": {"artifactLocation": artifact, "region": {"startLine": 1}}}


def _notes(reports: Iterable[model.Report]) -> list[dict[str, Any]]:
    return [
        {
            "descriptor": {"id": note.id},
            "level": _NOTE_LEVELS[note.severity],
            "message": message(f"{report_name(report)}: {note.message} {note.remedy}".strip()),
        }
        for report in reports
        for note in report.notes
    ]


def _rejected(rejected: Iterable[model.Rejected]) -> list[dict[str, Any]]:
    return [
        {
            "descriptor": {"id": "file-not-read"},
            "level": "warning",
            "message": message(f"{file.path}: {file.reason}"),
        }
        for file in rejected
    ]


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]
