"""The tab's report says what was tried, and ranks by it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
from msgspec.structs import replace

from tb_perfadvisor import analyze
from tb_perfadvisor.plugin.routes.analyses import _with_proofs
from tb_perfadvisor.proof.ledger import Machine, Proof, append, digest_of, ledger_file
from tb_perfadvisor.proof.results import Effect
from tb_perfadvisor.report.report import Report
from tests.support.command import SLOW


@contextmanager
def tried(report: Report, verdict: str) -> Iterator[None]:
    """Every change of a report was tried, with the same verdict."""
    changes = {each.change for finding in report.findings for each in finding.remedies}
    append(
        [
            Proof(
                tried_unix_s=1,
                recording=digest_of(report),
                change=change,
                measured=Effect(-0.01, 0.0, 0.01),
                verdict=verdict,  # type: ignore[arg-type]
                machine=Machine("Linux x86_64", "", 2, None, ""),
            )
            for change in changes
            if change
        ],
        ledger_file(),
    )
    try:
        yield
    finally:
        ledger_file().unlink()


def test_findings_say_what_was_tried_and_come_last_in_vain() -> None:
    analyzed = analyze(SLOW)
    untried = replace(
        analyzed.findings[0], rule_id="untried", refines=None, remedies=[], title="Untried"
    )
    report = replace(analyzed, findings=[*analyzed.findings, untried])
    content = msgspec.json.encode(report)
    assert _with_proofs(content) == content  # nothing was tried
    with tried(report, "no difference"):
        shown = msgspec.json.decode(_with_proofs(content), type=Report)
    last = len(report.findings) - 1
    assert [each.analyzed_place for each in shown.findings] == [last, *range(last)]
    assert shown.findings[1].proof is not None
    assert shown.findings[1].proof.text.startswith("did not help here")


def test_findings_that_stay_name_no_places() -> None:
    report = analyze(SLOW)
    with tried(report, "faster"):
        shown = msgspec.json.decode(_with_proofs(msgspec.json.encode(report)), type=Report)
    assert {each.analyzed_place for each in shown.findings} == {None}
