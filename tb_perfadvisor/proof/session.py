"""A whole `perfadvisor try`: a baseline, a trial of each change, and of those that helped."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import Struct
from msgspec.structs import replace

from tb_perfadvisor.advice import change_ids
from tb_perfadvisor.contract import model
from tb_perfadvisor.errors import UsageError
from tb_perfadvisor.proof.results import Prediction
from tb_perfadvisor.proof.runner import Runner
from tb_perfadvisor.proof.snapshot import Snapshot
from tb_perfadvisor.proof.trial import Progress, Trial, try_change
from tb_perfadvisor.report.report import Report
from tb_perfadvisor.sources import Repository
from tb_perfadvisor.suggest import suggest

if TYPE_CHECKING:
    from tb_perfadvisor.report.report import Report


_RESEEDS: Final = frozenset({"loader-workers"})
"""Fixes after which random transforms draw other numbers: workers have seeds of their own."""
_APPLY_LIMIT_S: Final = 60


class PatchDoesNotApplyError(UsageError):
    """A patch does not fit the code."""


class Candidate(Struct, frozen=True):
    """A change to try."""

    name: str
    """The id of the change in the catalog of advice, or the name of the user's file."""
    is_of_catalog: bool
    rule_id: str
    """The rule of its finding; empty for a patch of the user."""
    patch: str
    """A unified diff, relative to `directory`."""
    directory: Path
    """Where the patch applies, in the checkout."""
    what: tuple[str, ...]
    """What it does, with its places."""
    predicted: Prediction | None
    may_differ: str
    """Why results may differ a little; empty if they must be equal."""
    finding: model.FindingInfo | None
    """With the one remedy that it carries out; None for a patch of the user."""


def started_with(
    command: Sequence[str], started_in: Path, repository: Path, report: Report
) -> Report:
    """The report, with the script of a command as that of the program.

    The command starts the program: `python train.py`, `torchrun train.py`, `python -m app.train`.
    The recording of the report may name another script, or none.
    """
    for before, word in zip(("", *command), command, strict=False):
        files = [word] if word.endswith(".py") else []
        if before == "-m":
            module = word.replace(".", "/")
            files = [f"{module}.py", f"{module}/__main__.py"]
        for file in files:
            path = (started_in / file).resolve()
            if path.is_file() and path.is_relative_to(repository.resolve()):
                script = path.relative_to(repository.resolve()).as_posix()
                return replace(report, workload=replace(report.workload, script=script))
    return report


def candidates_of(
    report: model.Report, repository: Path, changes: Sequence[str]
) -> list[Candidate]:
    """The mechanical changes for the findings of a report, best finding first.

    `changes` are ids; by default the first mechanical one of each finding is taken.
    """
    unknown = sorted(set(changes) - set(change_ids()))
    if unknown:
        raise UsageError(
            f"there is no change {unknown[0]!r}.", hint="docs/advice.md lists the changes."
        )
    found: list[Candidate] = []
    for finding in report.findings:
        for remedy in finding.remedies:
            is_wanted = remedy.change in changes if changes else True
            candidate = _candidate(report, finding, remedy, repository) if is_wanted else None
            if candidate is not None and candidate.patch not in [each.patch for each in found]:
                found.append(candidate)
                if not changes:
                    break
    return found


def candidate_of_file(file: Path, directory: Path) -> Candidate:
    """A patch of the user, relative to a directory."""
    try:
        patch = file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no text in UTF-8"
        raise UsageError(f"cannot be read: {reason}.", where=str(file)) from error
    return Candidate(file.name, False, "", patch, directory, (), None, "", None)


def combination_of(
    report: model.Report | None, proved: Sequence[Candidate], repository: Path
) -> str | None:
    """One patch for several changes of a report; None if not all of them fit together.

    All changes are those of the catalog.
    """
    findings = [each.finding for each in proved if each.finding is not None]
    if report is None or len(findings) < len(proved):
        return None
    # Two remedies of one finding become two findings, whose patches build on one another.
    suggestions = suggest(
        replace(report, findings=[replace(each, refines=None) for each in findings]),
        Repository(repository),
    )
    patches = [each.patch for each in suggestions if each.outcome == "patch"]
    return "".join(patches) if len(patches) == len(proved) else None


def _candidate(
    report: model.Report, finding: model.FindingInfo, remedy: model.Remedy, repository: Path
) -> Candidate | None:
    if not remedy.fixes:
        return None
    alone = replace(finding, remedies=[remedy], refines=None)
    (suggestion,) = suggest(replace(report, findings=[alone]), Repository(repository))
    if suggestion.outcome != "patch":
        return None
    saving = finding.saving
    may_differ = remedy.costs.get("accuracy", "").rstrip(".")
    if not may_differ and _RESEEDS & set(remedy.fixes):
        may_differ = "workers draw other random numbers"
    return Candidate(
        name=remedy.change or finding.rule_id,
        is_of_catalog=bool(remedy.change),
        rule_id=finding.rule_id,
        patch=suggestion.patch,
        directory=repository,
        what=tuple(suggestion.changes),
        predicted=None
        if saving is None
        else Prediction(saving.share_low, saving.share_expected, saving.share_high),
        may_differ=may_differ,
        finding=alone,
    )


def apply_patch(patch: str, directory: Path) -> None:
    """Apply a patch in a copy.

    `git apply` refuses paths that lead out of the directory, also by links.

    The patch is a unified diff, relative to the directory, which lies in no repository.

    Raises:
        PatchDoesNotApplyError: If it does not apply.
        UsageError: If it cannot be applied.
    """
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("GIT_")},
        "GIT_CEILING_DIRECTORIES": str(directory.parent),
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_NOSYSTEM": "1",
    }
    try:
        done = subprocess.run(
            ["git", "apply", "--whitespace=nowarn", "-"],
            cwd=directory,
            env=environment,
            input=patch.encode(),
            capture_output=True,
            timeout=_APPLY_LIMIT_S,
            check=False,
        )
    except FileNotFoundError as error:
        raise UsageError("needs git, which applies patches.", where="try") from error
    except subprocess.TimeoutExpired as error:
        raise UsageError("the patch could not be applied in time.") from error
    if done.returncode:
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines() or ["it has no change"]
        raise PatchDoesNotApplyError(f"the patch does not apply: {lines[0]}.")


Analyze = Callable[[Path], "Report"]


class Tried(Struct, frozen=True):
    """A change, and what trying it showed."""

    candidate: Candidate
    trial: Trial


class Session:
    """Tries changes of one program."""

    def __init__(
        self,
        runner: Runner,
        space: Path,
        repository: Path,
        *,
        budget_s: float,
        checks: Sequence[str],
        progress: Progress,
    ) -> None:
        """Prepare.

        `working_space` makes the space. Patches are relative to the repository, which lies in the
        checkout. Each change has the budget. `checks` are patterns of the names of tensors to
        compare.
        """
        self._runner, self._space, self._repository = runner, space, repository
        self._budget_s, self._checks, self._progress = budget_s, tuple(checks), progress
        self._snapshot: Snapshot = runner.snapshot
        self._versions = 0
        self.fits_together = True
        """Whether the changes that helped could be tried together, if there were several."""
        if not self._snapshot.has_copied(repository.resolve()):
            raise UsageError(
                "lies outside of the program that is tried.",
                where=str(repository),
                hint=f"The program is {self._snapshot.checkout}.",
            )

    def record(self, analyze: Analyze, keep: Path | None = None) -> Report:
        """Record the program as it is, and analyze that.

        If the recording is to be kept, that path may not exist yet.
        """
        logdir = self._space / "recording"
        self._progress("recording the original")
        self._runner.record(self._snapshot.directory, logdir, self._budget_s)
        if keep is not None:
            try:
                shutil.copytree(logdir, keep, dirs_exist_ok=True)
            except OSError as error:
                reason = error.strerror or "some files could not be copied"
                raise UsageError(f"cannot be written: {reason}.", where=str(keep)) from error
        return analyze(logdir)

    def try_all(self, candidates: Sequence[Candidate], report: Report | None) -> Iterator[Tried]:
        """Try each change, and at the end those that helped together.

        Changes of the catalog are those of the report.
        """
        helped = []
        for candidate in candidates:
            tried = self._try(candidate)
            if tried.trial.verdict == "faster":
                helped.append(tried)
            yield tried
        if len(helped) > 1:
            candidate_of_all = self._together([each.candidate for each in helped], report)
            together: Tried | None = None
            if candidate_of_all is not None:
                with suppress(PatchDoesNotApplyError):
                    together = self._try(candidate_of_all)
            self.fits_together = together is not None
            if together is not None:
                yield together

    def _together(self, helped: list[Candidate], report: Report | None) -> Candidate | None:
        """All changes that helped, as one; None if their patches do not fit together."""
        is_of_catalog = all(each.is_of_catalog for each in helped)
        if is_of_catalog:
            patch = combination_of(report, helped, self._repository)
        else:
            patch = "".join(each.patch for each in helped)
        if patch is None:
            return None
        return Candidate(
            name=" + ".join(each.name for each in helped),
            is_of_catalog=is_of_catalog,
            rule_id="",
            patch=patch,
            directory=self._repository,
            what=tuple(what for each in helped for what in each.what),
            predicted=None,
            may_differ="; ".join(filter(None, (each.may_differ for each in helped))),
            finding=None,
        )

    def _try(self, candidate: Candidate) -> Tried:
        self._versions += 1
        name = f"change{self._versions}"
        version = self._space / name
        self._snapshot.copy(version)
        inside = candidate.directory.resolve().relative_to(self._snapshot.checkout)
        apply_patch(candidate.patch, version / inside)
        trial = try_change(
            self._runner,
            self._snapshot.directory,
            version,
            name,
            budget_s=self._budget_s,
            checks=self._checks,
            may_differ=candidate.may_differ,
            progress=lambda text: self._progress(f"{candidate.name}, {text}"),
        )
        return Tried(candidate, trial)


def changes_to_try(
    report: model.Report | None, repository: Path, changes: Sequence[str], patches: Sequence[Path]
) -> list[Candidate]:
    """The user's patches, and the changes of a report."""
    found = [candidate_of_file(file, repository) for file in patches]
    if report is not None:
        found += candidates_of(report, repository, changes)
    if not found:
        named = f" among {', '.join(changes)}" if changes else ""
        raise UsageError(
            f"there is no change to try{named}: no finding has a mechanical fix for this code.",
            hint="`perfadvisor suggest` says why; try your own change with --patch FILE.",
        )
    return found
