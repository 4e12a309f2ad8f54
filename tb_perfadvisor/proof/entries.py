"""Makes a line of the ledger of a trial."""

from __future__ import annotations

from tb_perfadvisor.contract import model
from tb_perfadvisor.proof.candidates import Candidate
from tb_perfadvisor.proof.ledger import PATCH, Machine, Proof, digest_of
from tb_perfadvisor.proof.trial import Trial
from tb_perfadvisor.version import VERSION


def proof_of(
    candidate: Candidate, trial: Trial, report: model.Report | None, machine: Machine, unix_s: int
) -> Proof:
    """The line of a trial."""
    is_named = candidate.is_of_catalog
    return Proof(
        tried_unix_s=unix_s,
        recording="" if report is None else digest_of(report),
        change=candidate.name if is_named else PATCH,
        rule=candidate.rule_id,
        predicted=candidate.predicted,
        measured=trial.effect,
        verdict=trial.verdict,
        # Words of the program, such as its last line, may hold paths.
        reason="" if trial.verdict == "failed" else _without_names(trial.reason),
        results=trial.results.agreement,
        pairs=trial.pairs,
        in_turns=trial.in_turns,
        repeated_pairs=trial.repeated,
        step_ns=None if trial.base_step_ns is None else round(trial.base_step_ns),
        load_by_others=None if trial.load is None else round(trial.load, 3),
        machine=machine,
        versions={"tb_perfadvisor": VERSION, **trial.versions},
    )


def _without_names(reason: str) -> str:
    """A reason without the names of the program's own tensors and tags."""
    return f"{reason.split()[0]} differs" if reason.startswith(("tensor ", "logged ")) else reason
