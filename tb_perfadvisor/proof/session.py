"""A whole `perfadvisor try`: a baseline, a trial of each change, and of those that helped."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from tb_perfadvisor.contract import model
from tb_perfadvisor.errors import UsageError
from tb_perfadvisor.proof.candidates import (
    Candidate,
    PatchDoesNotApplyError,
    apply_patch,
    candidate_of_file,
    candidates_of,
    combination_of,
)
from tb_perfadvisor.proof.runner import Runner
from tb_perfadvisor.proof.snapshot import Snapshot
from tb_perfadvisor.proof.trial import Progress, Trial, try_change

if TYPE_CHECKING:
    from tb_perfadvisor.report.report import Report

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
