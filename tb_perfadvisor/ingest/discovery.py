"""Finds the profiles of a log directory, and which files belong together."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from tb_perfadvisor.ingest.files.local_and_remote import FileEntry, is_url, list_tree
from tb_perfadvisor.ingest.heads import sniff_all
from tb_perfadvisor.ingest.naming import TraceName, parse_trace_name, session_label, stem_of
from tb_perfadvisor.ingest.tf_tools import ALL_HOSTS, tool_file

Format = Literal["kineto", "xplane", "chrome", "tf-tools"]

# Ranks write their traces when the same step ends; large ones take a while, and clocks of
# hosts differ. Recordings of one rank are told apart by the rank being there twice.
_SAME_SPAN_NS = 600 * 10**9

_XPLANE = ".xplane.pb"
_CLAIMS = re.compile(r"(?:\.pt\.trace|trace)\.json(?:\.gz)?$")
_PYTORCH = re.compile(r"\.pt\.trace\.json(?:\.gz)?$")
# `HOST.trace.json.gz`; and the same events again, which JAX writes for a link to Perfetto.
_HOST_EXPORT = re.compile(r"(?:^|/)[^/]+\.trace\.json(?:\.gz)?$")
_PERFETTO = re.compile(r"(?:^|/)perfetto_trace\.json(?:\.gz)?$")
_JSON = re.compile(r"\.json(?:\.gz)?$")
_SUFFIXES = (".json", ".json.gz", ".pb")
_SESSIONS = "plugins/profile/"
_IGNORED = re.compile(
    r"\.op_stats_v2\.pb$|\.hlo_proto\.pb$|\.cached_tools\.json$|(?:^|/)cache_version\.txt$"
    r"|\.SSTABLE$|\.smart_suggestion\.pb$|(?:^|/)[^/]*tfevents[^/]*$"
)
_OLD_REASON = (
    "of what TensorFlow's profiler wrote before 2021 there is only {}: no times of steps. Record "
    "again with TensorFlow 2.4 or later, which writes a .xplane.pb."
)


class ProfileFile(Struct, frozen=True):
    """One file of a capture."""

    path: str
    """Relative to the root, with forward slashes."""
    size_bytes: int
    mtime_ns: int
    rank: int | None = None
    host: str = ""
    version: str = ""
    """What a store calls the state of the content; empty for local files."""


class Capture(Struct, frozen=True):
    """Files that were recorded together: one report."""

    id: str
    """Opaque and stable."""
    run: str
    session: str
    format: Format
    files: tuple[ProfileFile, ...]
    beside: tuple[str, ...] = ()
    """Tools whose results of the same recording lie beside its events, and are not read."""

    @property
    def workers(self) -> tuple[tuple[ProfileFile, ...], ...]:
        """The files of each worker: one, except where each tool wrote its own."""
        if self.format != "tf-tools":
            return tuple((file,) for file in self.files)
        by_host: dict[str, list[ProfileFile]] = defaultdict(list)
        for file in self.files:
            by_host[file.host].append(file)
        return tuple(tuple(files) for files in by_host.values())


class Rejected(Struct, frozen=True):
    """A file whose name claims a profile and whose content is none."""

    path: str
    reason: str


class Listing(Struct, frozen=True):
    """What lies below a root."""

    root: str
    captures: tuple[Capture, ...]
    rejected: tuple[Rejected, ...]
    scanned_files: int
    is_complete: bool
    """Whether everything was looked at."""
    gaps: tuple[str, ...] = ()
    """What was not, and why: a phrase each."""

    def capture(self, capture_id: str) -> Capture | None:
        """The capture with an id."""
        return next((capture for capture in self.captures if capture.id == capture_id), None)


class _Candidate(Struct, frozen=True):
    """A Kineto trace with what its name and its head say."""

    entry: FileEntry
    name: TraceName
    rank: int | None


def discover(root: str | os.PathLike[str]) -> Listing:
    """Find all captures below a root.

    Args:
        root: A directory, one file, or any URL that fsspec opens.

    Raises:
        NothingFoundError: When there is nothing at the path.
        StoreError: When a store refuses, or cannot be reached.
        UsageError: When the URL's kind cannot be opened here.
    """
    tree = list_tree(root, _may_matter)
    above = _parts_above(tree.root)
    sessions: dict[tuple[str, str], list[FileEntry]] = defaultdict(list)
    captures: list[Capture] = []
    rejected: list[Rejected] = []
    jsons: list[FileEntry] = []
    results: dict[tuple[str, str], list[FileEntry]] = defaultdict(list)
    for entry in tree.entries:
        session = None if tree.only_file else _session_of(entry.path, above)
        if _IGNORED.search(entry.path):
            continue
        if session is not None and not _PYTORCH.search(entry.path):
            sessions[session].append(entry)
        elif entry.path.endswith(_XPLANE):
            run, name = _directory(entry.path), stem_of(entry.path)
            captures.append(_host_capture(run, name, "xplane", [entry]))
        elif tool_file(entry.path) is not None:
            results[_directory(entry.path), ""].append(entry)
        elif _JSON.search(entry.path) or tree.only_file:
            jsons.append(entry)
    for (run, name), entries in sessions.items():
        xplanes = [entry for entry in entries if entry.path.endswith(_XPLANE)]
        if xplanes:
            captures.append(_host_capture(run, name, "xplane", xplanes))
        else:
            jsons += [entry for entry in entries if _CLAIMS.search(entry.path)]
            results[run, name] += [entry for entry in entries if tool_file(entry.path) is not None]
    candidates, exports, refused, gap = _traces_among(tree.root, jsons, force=tree.only_file)
    captures.extend(_export_captures(exports, captures, None if tree.only_file else above))
    olds, reasons = _old_captures(results, captures, in_session=set(sessions), force=tree.only_file)
    captures = [*_beside(captures, results), *olds, *_kineto_captures(candidates)]
    rejected.extend(reasons)
    gaps = (*tree.gaps, gap) if gap else tree.gaps
    return Listing(
        root=tree.root,
        captures=tuple(sorted(captures, key=lambda c: (c.run, c.session, c.files[0].path))),
        rejected=tuple(sorted([*rejected, *refused], key=lambda r: r.path)),
        scanned_files=tree.scanned_files,
        is_complete=not gaps,
        gaps=gaps,
    )


def _may_matter(path: str) -> bool:
    """Whether a file can be of any interest by its name; most of a logdir's cannot."""
    return path.endswith(_SUFFIXES) or _SESSIONS in path


def _parts_above(root: str) -> tuple[str, ...]:
    """The last directories of the root: someone may point right into `plugins/profile`."""
    if is_url(root):
        return tuple(root.split("://", 1)[1].strip("/").split("/")[-3:])
    return Path(os.path.abspath(root)).parts[-3:]  # noqa: PTH100 - resolve() would follow links


def _session_of(path: str, above: tuple[str, ...]) -> tuple[str, str] | None:
    """Run and session of a file in `RUN/plugins/profile/SESSION/`; None elsewhere."""
    parts = (*above, *path.split("/")[:-1])
    for index in range(len(parts) - 3, -1, -1):
        if parts[index] == "plugins" and parts[index + 1] == "profile":
            run = parts[len(above) : index] if index >= len(above) else ()
            return "/".join(run) or ".", "/".join(parts[index + 2 :])
    return None


def _directory(path: str) -> str:
    return path.rpartition("/")[0] or "."


def _capture(run: str, session: str, form: Format, files: Iterable[ProfileFile]) -> Capture:
    ordered = tuple(
        sorted(files, key=lambda file: (file.rank is None, file.rank or 0, file.host, file.path))
    )
    import hashlib  # with the library behind it; who only reads a capture hashes nothing

    text = "\0".join([run, session, *sorted(file.path for file in ordered)])
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:12]
    return Capture(digest, run, session, form, ordered)


def _host_capture(run: str, session: str, form: Format, entries: list[FileEntry]) -> Capture:
    """A capture of files that are named after the hosts that recorded them."""
    files = [
        ProfileFile(e.path, e.size_bytes, e.mtime_ns, None, _host_of(e.path), e.version)
        for e in entries
    ]
    return _capture(run, session, form, files)


def _host_of(path: str) -> str:
    is_named = path.endswith(_XPLANE) or _HOST_EXPORT.search(path)
    return stem_of(path) if is_named else ""


def _export_captures(
    exports: list[FileEntry], xplanes: list[Capture], above: tuple[str, ...] | None
) -> list[Capture]:
    """Exports of TensorFlow or JAX: the hosts of a session together, others by themselves.

    Those with an xplane beside them are copies of it that lack much.

    Args:
        exports: The files.
        xplanes: The captures of xplanes.
        above: The directories above the root; None when the root is one file.
    """
    with_xplane = {_directory(file.path) for capture in xplanes for file in capture.files}
    with_hosts = {_directory(e.path) for e in exports if not _PERFETTO.search(e.path)}
    groups: dict[tuple[str, str], list[FileEntry]] = defaultdict(list)
    for entry in exports:
        directory = _directory(entry.path)
        is_copy = _PERFETTO.search(entry.path) and directory in with_hosts
        if directory not in with_xplane and not is_copy:
            session = _session_of(entry.path, above) if above is not None else None
            groups[session or (directory, stem_of(entry.path))].append(entry)
    return [_host_capture(*session, "chrome", entries) for session, entries in groups.items()]


def _old_captures(
    results: dict[tuple[str, str], list[FileEntry]],
    events: list[Capture],
    *,
    in_session: set[tuple[str, str]],
    force: bool,
) -> tuple[list[Capture], list[Rejected]]:
    """Results of single tools, as TensorFlow's profiler wrote them before 2021.

    Where a recording has its events, they are read: they say more than sums of them.

    Args:
        results: The files of each session or directory.
        events: The captures of what keeps events.
        in_session: The sessions: elsewhere such names may be anything's, unless steps are there.
        force: The user named one of these files.
    """
    captures: list[Capture] = []
    rejected: list[Rejected] = []
    with_events = {_directory(file.path) for capture in events for file in capture.files}
    for session, entries in results.items():
        if not entries or _directory(entries[0].path) in with_events:
            continue
        files = _tool_files(entries)
        if files:
            captures.append(_capture(session[0], session[1] or files[0].host, "tf-tools", files))
        elif session in in_session or force:
            held = ", ".join(_tools(entries))
            path = entries[0].path if force else _directory(entries[0].path)
            rejected.append(Rejected(path, _OLD_REASON.format(held)))
    return captures, rejected


def _tool_files(entries: list[FileEntry]) -> list[ProfileFile]:
    """The files of the hosts of which any file has the times of steps."""
    named = [(entry, tool) for entry in entries if (tool := tool_file(entry.path)) is not None]
    hosts = {tool.host for _, tool in named if tool.may_hold_steps}
    if len(hosts) > 1:
        # The hosts one by one say more than what was made of them together.
        hosts.discard(ALL_HOSTS)
    return [
        ProfileFile(e.path, e.size_bytes, e.mtime_ns, None, tool.host, e.version)
        for e, tool in named
        if tool.host in hosts
    ]


def _tools(entries: list[FileEntry]) -> list[str]:
    return sorted({tool.tool for entry in entries if (tool := tool_file(entry.path)) is not None})


def _beside(
    captures: list[Capture], results: dict[tuple[str, str], list[FileEntry]]
) -> list[Capture]:
    """Captures that say so when results of tools lie beside their events."""
    tools = {_directory(own[0].path): tuple(_tools(own)) for own in results.values() if own}
    return [
        replace(capture, beside=tools.get(_directory(capture.files[0].path), ()))
        for capture in captures
    ]


def _traces_among(
    root: str, entries: list[FileEntry], *, force: bool
) -> tuple[list[_Candidate], list[FileEntry], list[Rejected], str]:
    """Look into JSON files: traces of PyTorch, exports of TensorFlow or JAX, and what is none.

    The last is a phrase on files that were not looked into, if there are any.
    """
    claims = {entry for entry in entries if force or _CLAIMS.search(entry.path)}
    sniffed, gap = sniff_all(root, entries, claims)
    candidates: list[_Candidate] = []
    exports: list[FileEntry] = []
    rejected: list[Rejected] = []
    for entry, found in sniffed.items():
        if found.format == "chrome":
            exports.append(entry)
        elif found.format == "kineto":
            name = parse_trace_name(entry.path)
            rank = found.rank if found.rank is not None else name.rank
            candidates.append(_Candidate(entry, name, rank))
        elif entry in claims:
            rejected.append(Rejected(entry.path, found.reason))
    return candidates, exports, rejected, gap


def _kineto_captures(candidates: list[_Candidate]) -> list[Capture]:
    """Ranks of one directory and one span together; everything else by itself."""
    groups: dict[tuple[str, str], list[_Candidate]] = defaultdict(list)
    alone: list[_Candidate] = []
    for candidate in candidates:
        directory = _directory(candidate.entry.path)
        if candidate.rank is None:
            alone.append(candidate)
        elif candidate.name.at_ns is None:
            groups[directory, candidate.name.family].append(candidate)
        else:
            groups[directory, ""].append(candidate)
    spans = [[candidate] for candidate in alone]
    for group in groups.values():
        spans.extend(_spans(group))
    return [_kineto_capture(span) for span in spans]


def _spans(group: list[_Candidate]) -> list[list[_Candidate]]:
    """Split the traces of several ranks into recordings: each holds every rank once."""
    by_rank: dict[int | None, list[_Candidate]] = defaultdict(list)
    for candidate in sorted(group, key=lambda c: (c.name.at_ns or 0, c.entry.path)):
        by_rank[candidate.rank].append(candidate)
    lists = list(by_rank.values())
    if len({len(ranked) for ranked in lists}) == 1:
        # Every rank recorded as often: the first of each belong together, and so on.
        paired = [list(span) for span in zip(*lists, strict=True)]
        if all(_is_near(span) for span in paired):
            return paired
    spans: list[list[_Candidate]] = []
    for candidate in sorted(group, key=lambda c: (c.name.at_ns or 0, c.entry.path)):
        last = spans[-1] if spans else []
        is_new = candidate.rank in {other.rank for other in last}
        if not last or is_new or not _is_near([last[0], candidate]):
            spans.append([candidate])
        else:
            last.append(candidate)
    return spans


def _is_near(span: list[_Candidate]) -> bool:
    times = [candidate.name.at_ns or 0 for candidate in span]
    return max(times) - min(times) <= _SAME_SPAN_NS


def _kineto_capture(span: list[_Candidate]) -> Capture:
    first = min(span, key=lambda c: (c.name.at_ns or 0, c.entry.path))
    at_ns = first.name.at_ns
    if at_ns is not None:
        session = session_label(at_ns)
    else:
        session = first.name.worker if len(span) == 1 else first.name.family
    files = [
        ProfileFile(e.path, e.size_bytes, e.mtime_ns, c.rank, c.name.host, e.version)
        for c in span
        for e in (c.entry,)
    ]
    return _capture(_directory(first.entry.path), session, "kineto", files)
