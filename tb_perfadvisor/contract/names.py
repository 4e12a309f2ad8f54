"""What reports, devices and findings are called, in the terminal and in the tab."""

from __future__ import annotations

from collections.abc import Sequence

from tb_perfadvisor.contract import model
from tb_perfadvisor.contract.run_row import RunRow
from tb_perfadvisor.ingest.captures import COMPILE_LOG_FORMAT
from tb_perfadvisor.plain_text import plain


def run_row(report: model.Report) -> RunRow:
    """The row of a report."""
    finding = report.findings[report.first.index] if report.first is not None else None
    return RunRow(
        framework=report.framework,
        device=device_name(report),
        is_synthetic=report.is_synthetic,
        step_time_ns=report.overview.step_time_ns,
        headline=report.headline,
        first_change=finding.title if finding else None,
        finding=finding_id(report.findings, report.first.index)
        if report.first is not None
        else None,
        saves_share=finding.saving.share_expected if finding and finding.saving else None,
        severity=finding.severity if finding else None,
        trust=report.trust.level,
        program=report.workload.script or report.workload.mode,
        set_aside=sum(each.is_set_aside for each in report.findings),
    )


def report_name(report: model.Report) -> str:
    """The name of a report: its run and session. The root of a logdir has no name."""
    # If the path names a session, run and session are equal: show the name once.
    parts = dict.fromkeys(part for part in (report.run, report.session) if part not in ("", "."))
    return plain(" / ".join(parts)) or "."


def device_name(report: model.Report) -> str:
    """`CPU`, or the accelerator with the number in use."""
    device = report.workers[report.reference_worker].device
    if report.formats == [COMPILE_LOG_FORMAT]:
        return "unknown"  # the log names no device
    if device is None:
        return "CPU"
    name = device.name or device.kind.upper()
    count = sum(worker.device.used or 0 for worker in report.workers if worker.device is not None)
    return f"{count} × {name}" if count > 1 else name


def finding_id(findings: Sequence[model.FindingInfo], index: int) -> str:
    """What links and notes call a finding: its rule, and a number if that has several."""
    rule_id = findings[index].rule_id
    number = sum(finding.rule_id == rule_id for finding in findings[: index + 1])
    return rule_id if number == 1 else f"{rule_id}~{number}"
