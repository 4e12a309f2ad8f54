"""Finds the profiles of a log directory, and which files belong together."""

from __future__ import annotations

import hashlib
import os
import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tb_perfadvisor.ingest.files import FileEntry, is_url, list_tree
from tb_perfadvisor.ingest.heads import sniff_all
from tb_perfadvisor.ingest.naming import TraceName, parse_trace_name, session_label, stem_of

Format = Literal["kineto", "xplane", "chrome"]

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
_OLD_TOOLS = re.compile(
    r"\.(?:overview_page|input_pipeline|tensorflow_stats|kernel_stats|pod_viewer|memory_viewer"
    r"|op_profile|memory_profile|tf_data_stats|trace)\.(?:pb|json)(?:\.gz)?$"
)
_OLD_REASON = (
    "this session holds only results of single tools, as TensorFlow's profiler wrote them "
    "before 2021. Record again with TensorFlow 2.4 or later, which writes a .xplane.pb."
)


@dataclass(frozen=True, slots=True)
class ProfileFile:
    """One file of a capture."""

    path: str
    """Relative to the root, with forward slashes."""
    size_bytes: int
    mtime_ns: int
    rank: int | None = None
    host: str = ""
    version: str = ""
    """What a store calls the state of the content; empty for local files."""


@dataclass(frozen=True, slots=True)
class Capture:
    """Files that were recorded together: one report."""

    id: str
    """Opaque and stable."""
    run: str
    session: str
    format: Format
    files: tuple[ProfileFile, ...]


@dataclass(frozen=True, slots=True)
class Rejected:
    """A file whose name claims a profile and whose content is none."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class Listing:
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


@dataclass(frozen=True, slots=True)
class _Candidate:
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
    for entry in tree.entries:
        session = None if tree.only_file else _session_of(entry.path, above)
        if _IGNORED.search(entry.path):
            continue
        if session is not None and not _PYTORCH.search(entry.path):
            sessions[session].append(entry)
        elif entry.path.endswith(_XPLANE):
            run, name = _directory(entry.path), stem_of(entry.path)
            captures.append(_host_capture(run, name, "xplane", [entry]))
        elif _JSON.search(entry.path) or tree.only_file:
            jsons.append(entry)
    for (run, name), entries in sessions.items():
        xplanes = [entry for entry in entries if entry.path.endswith(_XPLANE)]
        if xplanes:
            captures.append(_host_capture(run, name, "xplane", xplanes))
        else:
            jsons += [entry for entry in entries if _CLAIMS.search(entry.path)]
    candidates, exports, refused, gap = _traces_among(tree.root, jsons, force=tree.only_file)
    captures.extend(_export_captures(exports, captures, None if tree.only_file else above))
    captures.extend(_kineto_captures(candidates))
    read = {(capture.run, capture.session) for capture in captures}
    for session, entries in sessions.items():
        results = [entry for entry in entries if not _CLAIMS.search(entry.path)]
        if session not in read and any(_OLD_TOOLS.search(entry.path) for entry in results):
            rejected.append(Rejected(_directory(entries[0].path), _OLD_REASON))
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
