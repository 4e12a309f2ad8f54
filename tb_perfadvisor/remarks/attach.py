"""Joins what users say about findings with a report, when it is shown.

The command line joins what its settings file says, the tab what was written in the tab. Whoever
reaches the tab can write notes, so they open no gate.
"""

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
    it, and neither counts in what all changes save together. Findings keep their places and their
    savings.

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
    noted = replace(report, findings=findings)
    if not (count := sum(finding.is_set_aside for finding in findings)):
        return noted
    first = _first(report.first, findings)
    return replace(
        noted,
        first=first,
        headline=f"{_headline(report, first)}. {count} set aside",
        combined_saving=_combined(report.combined_saving, findings),
    )


def is_set_aside(findings: Sequence[model.FindingInfo], place: int) -> bool:
    """Whether the user decided against a finding, or against the one that it explains."""
    finding = findings[place]
    general = next((each for each in findings if each.rule_id == finding.refines), None)
    return any(each is not None and each.is_set_aside for each in (finding, general))


def _with_remark(finding: model.FindingInfo, remark: Remark | None) -> model.FindingInfo:
    if remark is None:
        return finding
    return replace(finding, remark=model.RemarkInfo(wont_fix=remark.wont_fix, text=remark.text))


def _first(
    first: model.FirstFinding | None, findings: Sequence[model.FindingInfo]
) -> model.FirstFinding | None:
    """The finding to begin with: that of the first group that is not set aside."""
    if first is None or not is_set_aside(findings, first.index):
        return first
    left = [at for at in range(len(findings)) if not is_set_aside(findings, at)]
    if not left:
        return None
    general = findings[left[0]]
    group = (
        at for at in left if findings[at] is general or findings[at].refines == general.rule_id
    )
    place = next((at for at in group if findings[at].leads), left[0])
    return model.FirstFinding(rule_id=findings[place].rule_id, index=place)


def _headline(report: model.Report, first: model.FirstFinding | None) -> str:
    """What the report leads with, if it begins with a finding or has none left."""
    if first == report.first:
        return report.headline
    if first is None:
        return report.headline_without_changes or report.headline
    return report.findings[first.index].headline or report.headline_without_changes


def _combined(
    combined: model.CombinedSaving | None, findings: Sequence[model.FindingInfo]
) -> model.CombinedSaving | None:
    """What the findings that are left save together.

    What each adds to those above it adds up to the whole.
    """
    if combined is None:
        return None
    left = [at for at in range(len(findings)) if not is_set_aside(findings, at)]
    if not any(findings[at].saving or findings[at].bounds for at in left):
        return None
    aside_ns = sum(
        finding.saving.marginal_ns
        for finding in findings
        if finding.is_set_aside and finding.refines is None and finding.saving is not None
    )
    return combined.without(aside_ns)
