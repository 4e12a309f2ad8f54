"""Reads results of TensorFlow's tools that lie beside the events of the same recording."""

from __future__ import annotations

from collections import defaultdict
from functools import partial

from tb_perfadvisor.errors import PerfAdvisorError
from tb_perfadvisor.ingest.captures import Capture, ProfileFile
from tb_perfadvisor.ingest.files.access import open_file
from tb_perfadvisor.ingest.tf_tools import may_hold_steps, tools_of
from tb_perfadvisor.note import Note
from tb_perfadvisor.trace import StatedResults


def read_stated_results(
    root: str, capture: Capture
) -> tuple[tuple[StatedResults, ...], tuple[Note, ...]]:
    """What the results beside a capture state, and notes on those that say nothing."""
    by_host: dict[str, list[ProfileFile]] = defaultdict(list)
    for file in capture.results:
        if may_hold_steps(file):
            by_host[file.host].append(file)
    if not by_host:
        return (), _without_steps(capture)
    from tb_perfadvisor.ingest.tf_tools.reader import read_stated

    stated: list[StatedResults] = []
    notes: list[Note] = []
    for host, files in by_host.items():
        openers = {file.path: partial(open_file, root, file) for file in files}
        try:
            result, notes_of_host = read_stated(openers, host)
        except PerfAdvisorError as error:
            names = ", ".join(file.path.rsplit("/", 1)[-1] for file in files)
            notes.append(
                Note(
                    "other-results",
                    "info",
                    f"Results of TensorFlow's tools beside the events were not read ({names}): "
                    f"{error.message}",
                )
            )
        else:
            stated.append(result)
            notes += notes_of_host
    return tuple(stated), tuple(notes)


def _without_steps(capture: Capture) -> tuple[Note, ...]:
    if not capture.results:
        return ()
    return (
        Note(
            "other-results",
            "info",
            f"Beside the events lie results of TensorFlow's tools ({_tools(capture)}): sums of the "
            "same recording, without times of steps to compare.",
        ),
    )


def _tools(capture: Capture) -> str:
    return ", ".join(tools_of(capture.results))
