"""Views of whole runs: `python -m tb_perfadvisor.plugin.whole_runs`.

Event files take long to read, so a separate process reads them. What it has read is cached, so that
it reads only the new part of a file that grows. Does not import TensorBoard.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Sequence

import msgspec

from tb_perfadvisor.engine.result_cache import ResultCache, code_fingerprint
from tb_perfadvisor.execution.execution import say, throttled
from tb_perfadvisor.ingest.event_files.runs import CandidateRuns
from tb_perfadvisor.plugin.document_job import run_document_job
from tb_perfadvisor.plugin.worker import REPORT
from tb_perfadvisor.training.training import RunOptions


class RunProfile(msgspec.Struct, frozen=True):
    """A profile of a run."""

    capture_id: str
    place: str
    """What the tab calls the run of the capture."""
    session: str
    certain: str | None
    """The run that it belongs to; None if the time of its recording decides."""
    key: str
    """Of its result in the cache; empty without one."""
    problem: str = ""
    """Why it has no result."""


class WholeRun(msgspec.Struct, frozen=True):
    """A run whose view is wanted."""

    place: str
    """What the tab calls the run of the capture."""
    group: str
    candidates: CandidateRuns
    """The runs with event files that the capture may belong to."""
    capture_id: str
    profiles: tuple[RunProfile, ...]
    options: RunOptions

    @property
    def key(self) -> str:
        """The key of the view in the cache, which changes with the files and the code."""
        content = msgspec.json.encode((self, code_fingerprint()))
        return hashlib.sha256(content).hexdigest()

    @property
    def subject(self) -> str:
        """Identifies the view however far the files have grown."""
        runs = self.candidates.runs
        files = tuple((run.root, file.entry.path) for run in runs for file in run.files)
        content = (files, self.group, self.capture_id, self.profiles, self.options)
        return hashlib.sha256(msgspec.json.encode(content)).hexdigest()


def make_view(wanted: WholeRun, results: ResultCache) -> bytes:
    """The view of a run as JSON; `null` if no scalars say anything about its speed.

    Raises:
        UnknownRunError: If the capture may belong to several runs.
        PerfAdvisorError: If event files cannot be read.
    """
    from tb_perfadvisor.comparison.whole_run import make_training_view, profile_name, span_of
    from tb_perfadvisor.contract.model import UnknownProfile
    from tb_perfadvisor.ingest.event_files.run_scalars import ScalarCache
    from tb_perfadvisor.ingest.event_files.timed_runs import TimedRuns, UnknownRunError
    from tb_perfadvisor.plugin.log_directories import grouped_run
    from tb_perfadvisor.report.report import Report

    reports = {
        profile.capture_id: msgspec.json.decode(content, type=Report)
        for profile in wanted.profiles
        if profile.key and (content := results.read(profile.key, REPORT)) is not None
    }
    timed = TimedRuns(wanted.candidates, ScalarCache(results.directory), throttled(say))
    shown = reports.get(wanted.capture_id)
    try:
        run = timed.run_of(span_of(shown.recorded) if shown is not None else None)
    except UnknownRunError as error:
        if error.is_ambiguous:
            raise
        return b"null"

    def belongs(profile: RunProfile) -> bool:
        if profile.certain is not None:
            return profile.certain == run.run
        report = reports.get(profile.capture_id)
        if report is None:  # the time of its recording is unknown until it is analyzed
            return len(wanted.candidates.runs) == 1
        try:
            return timed.run_at(span_of(report.recorded)) == run
        except UnknownRunError:
            return False

    profiles = [profile for profile in wanted.profiles if belongs(profile)]
    name = grouped_run(wanted.group, run.run)
    view = make_training_view(
        name,
        timed.scalars(run),
        [reports[each.capture_id] for each in profiles if each.capture_id in reports],
        [
            UnknownProfile(
                capture_id=profile.capture_id,
                session=profile_name(profile.place, profile.session, name),
                reason=profile.problem or "Not analyzed yet: open its report.",
            )
            for profile in profiles
            if profile.capture_id not in reports
        ],
        wanted.options,
    )
    return msgspec.json.encode(view)


def main(arguments: Sequence[str] | None = None) -> int:
    """Make one view, and return the exit status."""
    return run_document_job("tb_perfadvisor.plugin.whole_runs", WholeRun, make_view, arguments)


if __name__ == "__main__":
    sys.exit(main())
