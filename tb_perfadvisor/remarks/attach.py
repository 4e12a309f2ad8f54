"""Joins what users say about findings with a report, when it is shown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from msgspec.structs import replace

from tb_perfadvisor.contract import model
from tb_perfadvisor.contract.names import finding_id
from tb_perfadvisor.ingest.recordings import split_step
from tb_perfadvisor.remark import Remark

R = TypeVar("R", bound=model.Report)


def with_remarks(report: R, remarks: Iterable[Remark]) -> R:
    """A report whose findings carry what users say about them.

    A finding that the user decided against is not the one to begin with, nor is one that explains
    it. Findings keep their places and their savings.

    Remarks on other runs and findings are left out; the last one on a finding counts.
    """
    runs = {"", report.run, split_step(report.run)[0]}
    by_finding = {remark.finding: remark for remark in remarks if remark.run in runs}
    if not by_finding:
        return report
    findings = [
        _with_remark(finding, by_finding.get(finding_id(report.findings, place)))
        for place, finding in enumerate(report.findings)
    ]
    return replace(report, findings=findings, first=_first(report.first, findings))


def is_set_aside(findings: Sequence[model.FindingInfo], place: int) -> bool:
    """Whether the user decided against a finding, or against the one that it explains."""
    finding = findings[place]
    general = next((each for each in findings if each.rule_id == finding.refines), None)
    return any(
        each is not None and each.remark is not None and each.remark.wont_fix
        for each in (finding, general)
    )


def _with_remark(finding: model.FindingInfo, remark: Remark | None) -> model.FindingInfo:
    if remark is None:
        return finding
    return replace(finding, remark=model.RemarkInfo(wont_fix=remark.wont_fix, text=remark.text))


def _first(
    first: model.FirstFinding | None, findings: Sequence[model.FindingInfo]
) -> model.FirstFinding | None:
    """The finding to begin with: the first one that is not set aside."""
    if first is None or not is_set_aside(findings, first.index):
        return first
    place = next((at for at in range(len(findings)) if not is_set_aside(findings, at)), None)
    return (
        None if place is None else model.FirstFinding(rule_id=findings[place].rule_id, index=place)
    )
