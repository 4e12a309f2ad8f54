"""A ledger as a table: predicted against measured."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tb_perfadvisor.proof.ledger import Proof, is_within
from tb_perfadvisor.proof.shares import percent, span
from tb_perfadvisor.units import format_duration

COLUMNS = ("change", "step", "predicted", "measured (95 %)", "verdict", "pairs")


def row(proof: Proof) -> tuple[str, ...]:
    """The cells of a line."""
    predicted, measured = proof.predicted, proof.measured
    reason = f": {proof.reason}" if proof.verdict == "refused" and proof.reason else ""
    return (
        proof.change,
        "unknown" if proof.step_ns is None else format_duration(proof.step_ns),
        "none" if predicted is None else span(predicted.low, predicted.high),
        "none"
        if measured is None
        else f"{percent(measured.estimate)} ({span(measured.low, measured.high)})",
        f"{proof.verdict}{reason}",
        str(proof.pairs),
    )


def summary(proofs: Sequence[Proof]) -> str:
    """How often a prediction and the measured range met, in a sentence."""
    judged = [is_within(proof) for proof in proofs if is_within(proof) is not None]
    if not judged:
        return "No change with a prediction was measured yet."
    return (
        f"The predicted and the measured range meet in {sum(map(bool, judged))} of {len(judged)} "
        "decided trials that have both."
    )


def markdown_table(proofs: Sequence[Proof]) -> Iterator[str]:
    """The table and its summary, in Markdown."""
    yield f"| {' | '.join(COLUMNS)} |"
    yield f"|{'---|' * len(COLUMNS)}"
    for proof in proofs:
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in row(proof)) + " |"
    yield ""
    yield summary(proofs)
