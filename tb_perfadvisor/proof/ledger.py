"""The ledger of trials: what they predicted and measured, one line of JSON each.

It lies in the user's data directory and is sent nowhere. It holds no code, no paths and no command:
the name of a patch of the user is not written either.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from tb_perfadvisor.contract import model
from tb_perfadvisor.errors import UsageError
from tb_perfadvisor.proof.results import Effect, Prediction, Verdict, percent, span
from tb_perfadvisor.units import format_duration
from tb_perfadvisor.user_data import append_lines, data_file, read_lines
from tb_perfadvisor.version import VERSION

if TYPE_CHECKING:  # Candidates need the libraries that change code; reports need only the ledger.
    from tb_perfadvisor.proof.session import Candidate
    from tb_perfadvisor.proof.trial import Trial

FILE: Final = "proofs.jsonl"
FORMAT: Final = 1
PATCH: Final = "patch"
"""What the ledger calls a patch of the user."""


class Machine(msgspec.Struct, frozen=True):
    """What the ledger says of a machine: enough to tell whether two are alike, no name."""

    system: str
    processor: str
    cores: int
    memory_gib: float | None
    accelerator: str
    """As the program's framework names it; empty for none."""


class Proof(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A line of the ledger."""

    format: int = FORMAT
    tried_unix_s: int
    recording: str
    """A digest of the recording that predicted it; empty without one."""
    change: str
    """The id of the change, several joined with ` + `, or `patch`."""
    rule: str = ""
    predicted: Prediction | None = None
    measured: Effect | None = None
    """Shares of the step that are saved, at 95 % confidence."""
    verdict: Verdict
    reason: str = ""
    results: str = ""
    pairs: int = 0
    in_turns: bool = False
    repeated_pairs: int = 0
    step_ns: int | None = None
    """Of the original."""
    load_by_others: float | None = None
    machine: Machine
    versions: Mapping[str, str] = {}


def this_machine(accelerator: str) -> Machine:
    """The machine that this process runs on."""
    import platform

    from tb_perfadvisor.machine.this_machine import memory_bytes, open_cores, processor_name

    size_bytes = memory_bytes()
    return Machine(
        f"{platform.system()} {platform.machine()}",
        processor_name(),
        len(open_cores()) or os.cpu_count() or 1,
        None if size_bytes is None else round(size_bytes / (1 << 30), 1),
        accelerator,
    )


def ledger_file() -> Path:
    """Where the ledger lies; the file may not exist yet."""
    return data_file(FILE)


def digest_of(report: model.Report) -> str:
    """A digest that tells the recording of a report from all others, wherever its files lie.

    Two recordings of one program differ in it: when they began, to the nanosecond, how long they
    were and how many events each rank wrote.
    """
    facts = (
        report.recorded,
        report.framework,
        [(worker.rank, worker.duration_ns, worker.events) for worker in report.workers],
        report.overview.window_ns,
    )
    return blake2b(msgspec.json.encode(facts), digest_size=16).hexdigest()


def append(proofs: Iterable[Proof], file: Path) -> None:
    """Add lines to a ledger."""
    append_lines(b"".join(msgspec.json.encode(proof) + b"\n" for proof in proofs), file)


def read(file: Path) -> list[Proof]:
    """The lines of a ledger, the oldest first; those that are no proof are left out."""
    proofs = []
    for line in read_lines(file):
        try:
            proofs.append(msgspec.json.decode(line, type=Proof))
        except msgspec.MsgspecError:  # a full disk cut it off, or a later version wrote it
            continue
    return proofs


def known_proofs() -> list[Proof]:
    """The lines of the user's ledger; none if it cannot be read: reports do without."""
    try:
        return read(ledger_file())
    except (UsageError, RuntimeError):  # there may be no home directory
        return []


def is_within(proof: Proof) -> bool | None:
    """Whether the predicted and the measured range overlap; None without both or a verdict.

    The range of an undecided trial may be so wide that every prediction would be right.
    """
    if proof.predicted is None or proof.measured is None or proof.verdict == "undecided":
        return None
    return proof.predicted.low <= proof.measured.high and proof.measured.low <= proof.predicted.high


def latest(proofs: Sequence[Proof]) -> dict[tuple[str, str], Proof]:
    """The last verdict on each change of each recording; the clock may have been set back since."""
    return {
        (proof.recording, proof.change): proof
        for proof in proofs
        if proof.recording and proof.verdict not in ("undecided", "failed")
    }


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
