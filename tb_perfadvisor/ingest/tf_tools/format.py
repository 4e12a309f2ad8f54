"""Results of single tools, as TensorFlow's profiler wrote them before 2021.

Where a recording has events, which say more than sums of them, results are left out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from tb_perfadvisor.ingest.captures import (
    Capture,
    ProfileFile,
    Rejected,
    directory_of,
    make_capture,
    profile_file,
)
from tb_perfadvisor.ingest.files.tree import FileEntry
from tb_perfadvisor.ingest.format import Format, FoundFile, Grouped, Reader, reader_of_one_trace
from tb_perfadvisor.ingest.tf_tools import ALL_HOSTS, may_hold_steps, tool_file, tools_of

_WITHOUT_STEPS = (
    "of what TensorFlow's profiler wrote before 2021 there is only {}: no times of steps. Record "
    "again with TensorFlow 2.4 or later, which writes a .xplane.pb."
)


def _group(files: Sequence[FoundFile], earlier: Grouped) -> Grouped:
    """One capture per session or directory that has no events.

    Outside of sessions such names may be anything's, so results without steps are rejected only if
    the user named the file.
    """
    sessions: dict[tuple[str, str], list[FoundFile]] = defaultdict(list)
    for file in files:
        sessions[file.session or (directory_of(file.entry.path), "")].append(file)
    captures: list[Capture] = []
    rejected: list[Rejected] = []
    with_events = earlier.directories
    for (run, session), results in sessions.items():
        directory = directory_of(results[0].entry.path)
        if directory in with_events:
            continue
        found = _profile_files(result.entry for result in results)
        hosts = _files_of_hosts(found)
        if hosts:
            captures.append(
                make_capture(run, session or hosts[0].host, "tf-tools", hosts, merges_hosts=True)
            )
        elif results[0].session is not None or results[0].is_only_file:
            path = results[0].entry.path if results[0].is_only_file else directory
            reason = _WITHOUT_STEPS.format(", ".join(tools_of(found)))
            rejected.append(Rejected(path, reason))
    return Grouped((*earlier.captures, *captures), (*earlier.rejected, *rejected))


def _files_of_hosts(files: Sequence[ProfileFile]) -> list[ProfileFile]:
    """The files of those hosts that have a file with the times of steps."""
    hosts = {file.host for file in files if may_hold_steps(file)}
    if len(hosts) > 1:
        # The hosts one by one say more than what was merged from them.
        hosts.discard(ALL_HOSTS)
    return [file for file in files if file.host in hosts]


def _profile_files(entries: Iterable[FileEntry]) -> tuple[ProfileFile, ...]:
    return tuple(
        profile_file(entry, host=tool.host)
        for entry in entries
        if (tool := tool_file(entry.path)) is not None
    )


def _reader() -> Reader:
    from tb_perfadvisor.ingest.tf_tools.reader import read_tf_tools

    return reader_of_one_trace(read_tf_tools)


TF_TOOLS = Format(
    name="tf-tools",
    label="output of an older TensorFlow Profiler",
    claims=lambda path: tool_file(path) is not None,
    group=_group,
    reader=_reader,
    framework="tensorflow",
)
