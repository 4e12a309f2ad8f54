"""Adds the compiler's own answers to the findings of a report about shapes."""

from __future__ import annotations

import shlex

from msgspec.structs import replace

from tb_perfadvisor.advice import change
from tb_perfadvisor.contract.model import FindingInfo, TableColumn, TableEvidence
from tb_perfadvisor.report.report import Report
from tb_perfadvisor.tpu_compiler.estimates import ShapeEstimates, estimate_shapes
from tb_perfadvisor.tpu_compiler.shapes import parse_operations

_COMMAND = ["perfadvisor", "tpu-shapes"]


def with_answers(report: Report, *, time_limit_s: float) -> Report:
    """The report, with what the TPU compiler says of the sizes that its findings propose.

    The time limit is for each question.
    """
    return replace(
        report, findings=[_answered(finding, time_limit_s) for finding in report.findings]
    )


def _answered(finding: FindingInfo, time_limit_s: float) -> FindingInfo:
    question = _question(finding)
    if question is None:
        return finding
    shapes, topology = question
    estimates = estimate_shapes(topology, parse_operations(shapes), time_limit_s=time_limit_s)
    if len(estimates.rows) < 2:
        return finding
    now, then = (row.time_ns for row in estimates.rows[:2])
    change = f"{abs(then / now - 1):.1%}".replace("%", " %") + (" less" if then < now else " more")
    return replace(
        finding,
        summary=f"{finding.summary} Asked for {estimates.rows[1].shape}, XLA's compiler estimates"
        f" {change} time.",
        evidence=[*finding.evidence, _table(estimates)],
    )


def _question(finding: FindingInfo) -> tuple[str, str] | None:
    """Shapes and topology of the command that a remedy shows; None if it shows none."""
    for remedy in finding.remedies:
        words = shlex.split(remedy.snippet) if remedy.language == "bash" else []
        is_example = remedy.snippet == change("ask-tpu-compiler").values["question"]
        if words[:2] == _COMMAND and not is_example and len(words) == 5:
            return words[2], words[4]
    return None


def _table(estimates: ShapeEstimates) -> TableEvidence:
    return TableEvidence(
        title=estimates.title,
        columns=[
            TableColumn(key="shape", label="Shape", unit=""),
            TableColumn(key="time_ns", label="Estimated time", unit="ns"),
            TableColumn(key="cycles", label="Cycles", unit="count"),
            TableColumn(key="hbm_bytes", label="Memory traffic", unit="bytes"),
        ],
        rows=[
            [row.shape, round(row.time_ns), round(row.cycles), row.hbm_bytes]
            for row in estimates.rows
        ],
        truncated=0,
    )
