"""What lies beside a profile: a richer recording, logs, facts, results.

Takes names from a rich recording of a run, and times from a light one of other steps.

Shapes and stacks slow the program, so our recorders make one recording with them and others
without. A program runs the same operators in each step: where the operators of a step on a thread
are the same, one by one, those of the light recording get the shapes and lines of the rich one's.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from tb_perfadvisor.errors import PerfAdvisorError
from tb_perfadvisor.ingest.captures import (
    Capture,
    ProfileFile,
    name_of,
    name_of_facts,
    profile_file,
)
from tb_perfadvisor.ingest.files.access import open_file
from tb_perfadvisor.ingest.files.tree import FileEntry
from tb_perfadvisor.ingest.tf_tools.merge import may_hold_steps, tools_of
from tb_perfadvisor.machine.facts import SUFFIX, UNKNOWN, Facts
from tb_perfadvisor.note import Note
from tb_perfadvisor.plain_text import plain
from tb_perfadvisor.signals.core.origins import user_line
from tb_perfadvisor.trace import EventKind, Source, StatedResults, Trace
from tb_perfadvisor.trace.compile_log import CompileLog
from tb_perfadvisor.trace.integer_groups import distinct, places_by_value
from tb_perfadvisor.trace.nesting import nearest
from tb_perfadvisor.trace.tables import Int32, OperatorTable


def named_by(trace: Trace, rich: Trace) -> Trace:
    """A light trace with the shapes, types and lines of a rich trace's operators.

    Args:
        trace: The light trace.
        rich: A trace of other steps of the same process.

    Returns:
        The trace itself if no step's operators are the same.
    """
    theirs: dict[tuple[str, ...], Int32] = {}
    for rows in _segments(rich):
        theirs.setdefault(rich.texts(rich.events.name[rows]), rows)
    pairs = [
        (rows, theirs[names])
        for rows in _segments(trace)
        if (names := trace.texts(trace.events.name[rows])) in theirs
    ]
    if not pairs:
        return trace
    ours = np.concatenate([rows for rows, _ in pairs])
    order = np.argsort(ours)
    matched = np.concatenate([rows for _, rows in pairs])[order]
    return _with_attributes(trace, ours[order], rich, matched)


def _segments(trace: Trace) -> Iterator[Int32]:
    """The operators of each step on each thread, in order of start."""
    events, steps = trace.events, trace.rows(EventKind.STEP)
    rows = trace.rows(EventKind.OPERATOR)
    step = np.searchsorted(events.start_ns[steps], events.start_ns[rows], side="right")
    for _, on_track in places_by_value(events.track[rows]):
        for number, places in places_by_value(step[on_track]):
            if number > 0 or len(steps) == 0:
                yield rows[on_track[places]]


def _with_attributes(trace: Trace, rows: Int32, rich: Trace, matched: Int32) -> Trace:
    """The trace with attributes of matched operators.

    Args:
        trace: The light trace.
        rows: Its operators, in order; shape (n,).
        rich: The rich trace.
        matched: Its operators, one for each; shape (n,).
    """
    strings = {text: index for index, text in enumerate(trace.strings)}
    table, theirs = trace.operators, rich.operators
    all_rows = np.union1d(table.row, rows).astype(np.int32)
    place, known = np.searchsorted(all_rows, rows), np.searchsorted(all_rows, table.row)

    def column(name: str, taken: Int32) -> Int32:
        """A column of texts: those of the trace, and where it has none, those that were taken."""
        own: Int32 = np.full(len(all_rows), -1, np.int32)
        own[known] = getattr(table, name)
        added = np.full(len(all_rows), -1, np.int32)
        added[place] = _moved(rich, taken, strings)
        return np.where(own >= 0, own, added).astype(np.int32)

    attributes = {
        name: column(name, rich.by_event(theirs.row, getattr(theirs, name), -1)[matched])
        for name in ("shapes", "dtypes", "values", "module")
    }
    lines = lines_of(rich, matched)
    frame = np.full(len(all_rows), -1, np.int32)
    frame[known] = table.frame
    texts = [strings.setdefault(line, len(strings)) if line else -1 for line in lines]
    frame[place] = np.where(frame[place] >= 0, frame[place], texts)
    sequence = np.full(len(all_rows), -1, np.int64)
    sequence[known] = table.sequence
    operators = OperatorTable(row=all_rows, frame=frame, sequence=sequence, **attributes)
    columns: tuple[NDArray[Any], ...] = (all_rows, frame, sequence, *attributes.values())
    for values in columns:
        values.setflags(write=False)
    return replace(
        trace,
        operators=operators,
        strings=tuple(strings),
        source=replace(trace.source, named_by=rich.source.path),
    )


def _moved(rich: Trace, values: Int32, strings: dict[str, int]) -> Int32:
    """Indices of the rich trace's strings as those of the light one's; adds them; -1 stays."""
    moved = np.full(len(rich.strings) + 1, -1, np.int32)
    for index in distinct(values[values >= 0]).tolist():
        moved[index] = strings.setdefault(rich.strings[index], len(strings))
    return moved[values]


def lines_of(rich: Trace, rows: Int32) -> list[str]:
    """The user's line of each operator: the innermost frame of the user's code around it."""
    events = rich.events
    is_python = events.kind == EventKind.PYTHON
    text_of = [""] * (len(rich.strings) + 1)
    is_user = np.zeros(len(rich.strings) + 1, np.bool_)
    for name in distinct(events.name[is_python]).tolist():
        line = user_line(rich.strings[name])
        if line is not None:
            text_of[name], is_user[name] = line, True
    own = rich.by_event(rich.operators.row, rich.operators.frame, -1)[rows]
    around = nearest(events.parent, is_python & is_user[events.name])[rows]
    names = np.where(around >= 0, events.name[around], -1).tolist()
    return [
        rich.text(frame) or text_of[name] for frame, name in zip(own.tolist(), names, strict=True)
    ]


_MOST_LOGS = 16
"""Ranks compile the same code, and a log of a long run has some hundred megabytes."""


def read_compile_logs(
    root: str, capture: Capture
) -> tuple[tuple[CompileLog, ...], tuple[Note, ...]]:
    """The logs beside a capture, and notes on those that were not read.

    Args:
        root: What the paths of the files are relative to.
        capture: The capture.
    """
    if not capture.compile_logs:
        return (), ()
    from tb_perfadvisor.ingest.compile_log.format import read_records_only

    logs: list[CompileLog] = []
    notes: list[Note] = []
    for file in capture.compile_logs[:_MOST_LOGS]:
        source = Source(path=file.path, format="", rank=file.rank)
        try:
            with open_file(root, file) as stream:
                logs.append(read_records_only(stream, source))
        except PerfAdvisorError as error:
            message = f"{file.path} was left out: {error.message}"
            notes.append(Note("unsupported-file", "warning", message, error.hint))
    more = len(capture.compile_logs) - _MOST_LOGS
    if more > 0:
        notes.append(
            Note(
                "compile-log",
                "info",
                f"Of {len(capture.compile_logs):,} logs of torch.compile, the first {_MOST_LOGS} "
                "were read.",
            )
        )
    return tuple(logs), tuple(notes)


def read_stated_results(
    root: str, capture: Capture
) -> tuple[tuple[StatedResults, ...], tuple[Note, ...]]:
    """What the results beside a capture state, and notes on those that say nothing.

    Args:
        root: What the paths of the files are relative to.
        capture: The capture.
    """
    by_host: dict[str, list[ProfileFile]] = defaultdict(list)
    for file in capture.results:
        if may_hold_steps(file):
            by_host[file.host].append(file)
    if not by_host:
        return (), _without_steps(capture)
    from tb_perfadvisor.ingest.tf_tools.format import read_stated

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


MOST_BYTES = 1 << 20
"""Facts of a program with hundreds of parts have some ten kilobytes."""


def is_facts_file(path: str) -> bool:
    """Whether a file has the facts of a capture, by its name."""
    return path.endswith(SUFFIX)


def with_facts(captures: Iterable[Capture], entries: Iterable[FileEntry]) -> tuple[Capture, ...]:
    """Captures with the files of facts that are named like theirs."""
    by_name = {name_of_facts(entry.path): entry for entry in entries}
    if not by_name:
        return tuple(captures)
    return tuple(
        replace(
            capture,
            facts=tuple(
                profile_file(by_name[name], file.rank, file.host)
                for file in capture.files
                if (name := name_of(file.path)) in by_name
            ),
        )
        for capture in captures
    )


def read_facts(root: str, file: ProfileFile) -> tuple[Facts, tuple[Note, ...]]:
    """What a file tells, and a note if it cannot be read.

    Args:
        root: What the path of the file is relative to.
        file: The file.
    """
    try:
        with open_file(root, file) as stream:
            return decode_facts(stream.read(MOST_BYTES + 1)), ()
    except PerfAdvisorError as error:
        reason = error.message
    except (ValueError, RecursionError):  # not JSON, or not of this form
        reason = "it is damaged, or was not written by Perf Advisor."
    message = f"{file.path} was left out, so the machine is unknown: {reason}"
    return UNKNOWN, (Note("unsupported-file", "info", message),)


def decode_facts(data: bytes) -> Facts:
    """Decode the content of such a file.

    Raises:
        ValueError: If it is too large or not of this form.
    """
    if len(data) > MOST_BYTES:
        raise ValueError("too large")
    return msgspec.convert(_plain(msgspec.json.decode(data)), Facts)


def _plain(value: Any) -> Any:
    """The same value with texts that are safe to show."""
    if isinstance(value, str):
        return plain(value)
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if isinstance(value, dict):
        return {plain(key): _plain(each) for key, each in value.items()}
    return value
