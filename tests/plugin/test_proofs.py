"""The tab's report says what was tried."""

from __future__ import annotations

import msgspec

from tb_perfadvisor import analyze
from tb_perfadvisor.plugin.routes.analyses import _with_proofs
from tb_perfadvisor.proof.ledger import Proof, append, digest_of, ledger_file
from tb_perfadvisor.proof.machine import Machine
from tb_perfadvisor.proof.shares import Effect
from tb_perfadvisor.report.report import Report
from tests.support.command import SLOW


def test_findings_keep_their_places_and_say_what_was_tried() -> None:
    report = analyze(SLOW)
    content = msgspec.json.encode(report)
    assert _with_proofs(content) == content  # nothing was tried
    change = next(each.change for each in report.findings[0].remedies if each.change)
    proof = Proof(
        tried_unix_s=1,
        recording=digest_of(report),
        change=change,
        measured=Effect(-0.01, 0.0, 0.01),
        verdict="no difference",
        machine=Machine("Linux x86_64", "", 2, None, ""),
    )
    append([proof], ledger_file())
    try:
        shown = msgspec.json.decode(_with_proofs(content), type=Report)
    finally:
        ledger_file().unlink()
    assert [each.rule_id for each in shown.findings] == [each.rule_id for each in report.findings]
    assert shown.findings[0].proof is not None
    assert shown.findings[0].proof.text.startswith("did not help here")
