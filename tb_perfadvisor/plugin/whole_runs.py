"""Views of whole runs: `python -m tb_perfadvisor.plugin.whole_runs`.

Event files take long to read, so a process of its own reads them. It reads `request.json` in the
output directory and replaces it by the view as JSON, or by `null` for a run whose scalars say
nothing of its speed. What it read of the files is kept, and growing files are read on from there.
Does not import TensorBoard.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from tb_perfadvisor.engine.result_cache import ResultCache, code_fingerprint
from tb_perfadvisor.execution.child_process import say, throttled
from tb_perfadvisor.ingest.event_files.runs import EventRun
from tb_perfadvisor.plugin.documents import DOCUMENT, REQUEST
from tb_perfadvisor.plugin.worker import REPORT, parser_of_options, run_job
from tb_perfadvisor.training.options import RunOptions


class RunProfile(msgspec.Struct, frozen=True):
    """A profile of a run."""

    capture_id: str
    session: str
    key: str
    """Of its result in the cache; empty without one."""
    problem: str = ""
    """Why it has no result."""


class WholeRun(msgspec.Struct, frozen=True):
    """A run whose view is wanted."""

    name: str
    """What the tab calls it."""
    event_run: EventRun
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
        files = tuple(file.entry.path for file in self.event_run.files)
        content = (self.event_run.root, self.name, files, self.profiles, self.options)
        return hashlib.sha256(msgspec.json.encode(content)).hexdigest()


def make_view(wanted: WholeRun, cache_directory: Path) -> bytes:
    """The view of a run as JSON.

    Raises:
        PerfAdvisorError: If its event files cannot be read.
    """
    from tb_perfadvisor.ingest.event_files.run_scalars import read_run
    from tb_perfadvisor.ingest.event_files.scalar_cache import ScalarCache
    from tb_perfadvisor.report import Report
    from tb_perfadvisor.report.whole_run.view import make_training_view
    from tb_perfadvisor.report.whole_run.view_model import UnknownProfile

    results = ResultCache(cache_directory)
    reports: list[Report] = []
    unknown: list[UnknownProfile] = []
    for profile in wanted.profiles:
        content = results.read(profile.key, REPORT) if profile.key else None
        if content is not None:
            reports.append(msgspec.json.decode(content, type=Report))
        else:
            unknown.append(
                UnknownProfile(
                    capture_id=profile.capture_id,
                    session=profile.session,
                    reason=profile.problem or "Not analyzed yet: open its report.",
                )
            )
    progress = throttled(say)
    scalars = read_run(wanted.event_run, ScalarCache(cache_directory), progress)
    view = make_training_view(wanted.name, scalars, reports, unknown, wanted.options)
    return msgspec.json.encode(view)


def main(arguments: Sequence[str] | None = None) -> int:
    """Make one view.

    Args:
        arguments: The command line arguments; by default those of the process.

    Returns:
        The exit status.
    """
    parser = parser_of_options("tb_perfadvisor.plugin.whole_runs")
    parser.add_argument("--cache", required=True, type=Path, help="where the results are")
    options = parser.parse_args(arguments)

    def make() -> None:
        path = options.output / REQUEST
        wanted = msgspec.json.decode(path.read_bytes(), type=WholeRun)
        path.unlink()
        (options.output / DOCUMENT).write_bytes(make_view(wanted, options.cache))

    return run_job(make, options)


if __name__ == "__main__":
    sys.exit(main())
