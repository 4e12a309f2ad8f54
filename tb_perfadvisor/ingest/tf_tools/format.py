"""Results of single tools, as TensorFlow's profiler wrote them before 2021.

They are read only where a recording has no events, which say more than sums of them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from tb_perfadvisor.ingest.captures import (
    Capture,
    ProfileFile,
    Rejected,
    directory_of,
    make_capture,
)
from tb_perfadvisor.ingest.files.tree import FileEntry
from tb_perfadvisor.ingest.format import Format, FoundFile, Grouped, Reader
from tb_perfadvisor.ingest.tf_tools.naming import ALL_HOSTS, tool_file

_WITHOUT_STEPS = (
    "of what TensorFlow's profiler wrote before 2021 there is only {}: no times of steps. Record "
    "again with TensorFlow 2.4 or later, which writes a .xplane.pb."
)


def _group(files: Sequence[FoundFile], earlier: Grouped) -> Grouped:
    """One capture per session or directory that has no events.

    Captures of events say which tools' results lie beside them. Outside of sessions such names
    may be anything's, so results without steps are rejected only if the user named the file.
    """
    sessions: dict[tuple[str, str], list[FoundFile]] = defaultdict(list)
    for file in files:
        sessions[file.session or (directory_of(file.entry.path), "")].append(file)
    captures: list[Capture] = []
    rejected: list[Rejected] = []
    with_events = earlier.directories
    tools: dict[str, tuple[str, ...]] = {}
    for (run, session), results in sessions.items():
        directory = directory_of(results[0].entry.path)
        entries = [result.entry for result in results]
        tools[directory] = _tools(entries)
        if directory in with_events:
            continue
        hosts = _files_of_hosts(entries)
        if hosts:
            captures.append(
                make_capture(run, session or hosts[0].host, "tf-tools", hosts, merges_hosts=True)
            )
        elif results[0].session is not None or results[0].is_only_file:
            path = results[0].entry.path if results[0].is_only_file else directory
            rejected.append(Rejected(path, _WITHOUT_STEPS.format(", ".join(tools[directory]))))
    with_tools = (
        replace(capture, beside=tools.get(directory_of(capture.files[0].path), ()))
        for capture in earlier.captures
    )
    return Grouped((*with_tools, *captures), (*earlier.rejected, *rejected))


def _files_of_hosts(entries: Iterable[FileEntry]) -> list[ProfileFile]:
    """The files of those hosts that have a file with the times of steps."""
    named = [(entry, tool) for entry in entries if (tool := tool_file(entry.path)) is not None]
    hosts = {tool.host for _, tool in named if tool.may_hold_steps}
    if len(hosts) > 1:
        # The hosts one by one say more than what was merged from them.
        hosts.discard(ALL_HOSTS)
    return [
        ProfileFile(entry.path, entry.size_bytes, entry.mtime_ns, None, tool.host, entry.version)
        for entry, tool in named
        if tool.host in hosts
    ]


def _tools(entries: Iterable[FileEntry]) -> tuple[str, ...]:
    return tuple(
        sorted({tool.tool for entry in entries if (tool := tool_file(entry.path)) is not None})
    )


def _reader() -> Reader:
    from tb_perfadvisor.ingest.tf_tools.reader import read_tf_tools

    return read_tf_tools


TF_TOOLS = Format(
    name="tf-tools",
    label="output of an older TensorFlow Profiler",
    claims=lambda path: tool_file(path) is not None,
    group=_group,
    reader=_reader,
    framework="tensorflow",
)
