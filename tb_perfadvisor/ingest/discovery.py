"""Finds profiles, and names files that are none."""

from __future__ import annotations

import os
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Sequence, Set
from functools import lru_cache
from pathlib import Path

from tb_perfadvisor.errors import PerfAdvisorError, contained, log_bug
from tb_perfadvisor.ingest import other_recorders
from tb_perfadvisor.ingest.captures import Capture, Listing, ProfileFile, Rejected
from tb_perfadvisor.ingest.event_files.runs import is_event_file
from tb_perfadvisor.ingest.files.access import list_tree, open_file, read_heads
from tb_perfadvisor.ingest.files.compression import inflate_head
from tb_perfadvisor.ingest.files.containment import LEADS_OUT
from tb_perfadvisor.ingest.files.tree import FileEntry, Tree, is_url
from tb_perfadvisor.ingest.format import HEAD_BYTES, FoundFile, Grouped, Sniffed
from tb_perfadvisor.ingest.formats import FORMATS, claims_trace, format_by_path, sniff
from tb_perfadvisor.ingest.recorded_facts import is_facts_file, with_facts, with_timers
from tb_perfadvisor.ingest.recordings import (
    LEFT_OVER,
    order_of,
    series_of,
    with_graphs,
    with_rich,
)
from tb_perfadvisor.patterns import regex
from tb_perfadvisor.plain_text import printable_name

# Data sets may hold a million JSON files; a trace has a name that says so, or few neighbors.
MAX_UNCLAIMED = 2_000
# Each is a request.
MAX_UNCLAIMED_REMOTE = 500
_LEFT_OVER_SHARE = 0.5
"""A recording of a run that is smaller than that part of the one before it is looked into."""
_FEWEST_EVENTS = 20
"""Fewer operators and kernels are no step."""
_INFLATED_BYTES = 16 * HEAD_BYTES
_WORK = regex(rb'"cat"\s*:\s*"(?:cpu_op|Operator|[Kk]ernel)"')
_WITH_LEFT_OVERS = ("kineto",)
# The roots of one TensorBoard, or of a notebook's session.
_MAX_ROOTS = 16

# For each root, the files of its last listing. A file that has changed is another entry; one that
# is gone is forgotten with the next listing.
_remembered: OrderedDict[str, dict[tuple[FileEntry, bool], Sniffed]] = OrderedDict()


def sniff_files(
    root: str, entries: Sequence[FileEntry], claims: Set[FileEntry]
) -> tuple[dict[FileEntry, Sniffed], str]:
    """Recognize files.

    The names of `claims` claim a trace: all of these files are looked into. Returns what each file
    is, in order of `entries`, and a phrase on those that were left out, if any.
    """
    limit = MAX_UNCLAIMED_REMOTE if is_url(root) else MAX_UNCLAIMED
    unclaimed = _in_turns([entry for entry in entries if entry not in claims])
    left_out = set(unclaimed[limit:])
    chosen = [entry for entry in entries if entry not in left_out]
    known = _remembered.get(root, {})
    new = [entry for entry in chosen if (entry, entry in claims) not in known]
    sniffed: dict[FileEntry, Sniffed] = {}
    failed = set()
    for entry, head in zip(new, read_heads(root, new, HEAD_BYTES), strict=True):
        if isinstance(head, PerfAdvisorError):
            failed.add(entry)
            reason = f"{head.message} {head.hint}".strip()
            sniffed[entry] = Sniffed(None, reason, is_profile=False)
        else:
            sniffed[entry] = _sniff(entry, head, is_claimed=entry in claims)
    result = {
        entry: sniffed[entry] if entry in sniffed else known[entry, entry in claims]
        for entry in chosen
    }
    # A file that could not be read may be readable next time.
    _remembered[root] = {
        (entry, entry in claims): found for entry, found in result.items() if entry not in failed
    }
    _remembered.move_to_end(root)
    while len(_remembered) > _MAX_ROOTS:
        _remembered.popitem(last=False)
    gap = ""
    if left_out:
        gap = (
            f"of {len(unclaimed):,} files that may be profiles, but whose names do not say so, "
            f"{limit:,} were looked into"
        )
    return result, gap


def _sniff(entry: FileEntry, head: bytes, *, is_claimed: bool) -> Sniffed:
    try:
        return sniff(inflate_head(head, HEAD_BYTES), is_claimed=is_claimed)
    except Exception as raised:  # one file must not hide the others
        error = contained(raised, entry.path)
        log_bug(error)
        return Sniffed(None, f"{error.message} {error.hint}".strip())


def _in_turns(entries: Sequence[FileEntry]) -> list[FileEntry]:
    """The first file of each directory, then the second of each, and so on.

    So a directory of data uses up only its own share of what may be read.
    """
    turns: Counter[str] = Counter()
    ordered = []
    for entry in entries:
        directory = entry.path.rpartition("/")[0]
        ordered.append((turns[directory], entry))
        turns[directory] += 1
    return [entry for _, entry in sorted(ordered, key=lambda pair: pair[0])]


# PyTorch's own names say what a file is wherever it lies.
_PYTORCH = regex(r"\.pt\.trace\.json(?:\.gz)?$")
_LOOKED_INTO = regex(r"\.(?:json|log|pickle|pkl|sqlite)(?:\.gz)?$|\.sqlite-wal$")
_PICKLES = (".pickle", ".pkl", ".pickle.gz", ".pkl.gz")
_DATABASES = (".sqlite", ".sqlite.gz", ".sqlite-wal")
_SUFFIXES = (".json", ".json.gz", ".pb", ".log", ".log.gz", *_PICKLES, *_DATABASES)
_SESSIONS = "plugins/profile/"
_IGNORED = regex(
    r"\.op_stats_v2\.pb$|\.hlo_proto\.pb$|\.cached_tools\.json$|(?:^|/)cache_version\.txt$"
    r"|\.SSTABLE$|\.smart_suggestion\.pb$"
)


def discover(root: str | os.PathLike[str], boundary: str = "") -> Listing:
    """Find all captures below a root.

    The root is a directory, one file, or any URL that fsspec opens. The boundary is the directory
    that every file must lie in, now and whenever it is opened, without links in its path. It is
    empty if links may lead anywhere.

    Raises:
        LeadsOutError: When the root leads out of the boundary.
        NothingFoundError: When there is nothing at the path.
        StoreError: When a store refuses, or cannot be reached.
        UsageError: When the URL's kind cannot be opened here.
    """
    tree = list_tree(root, _may_matter, boundary)
    files, candidates = _sort_by_name(tree)
    rejected, gap = _add_sniffed(tree, files, candidates)
    leading_out = tuple(Rejected(path, LEADS_OUT) for path in tree.leading_out)
    grouped = Grouped(rejected=(*rejected, *leading_out))
    for format in FORMATS:
        grouped = format.group(files[format.name], grouped)
    gaps = (*tree.gaps, gap) if gap else tree.gaps
    facts = [entry for entry in tree.entries if is_facts_file(entry.path)]
    captures, left_overs = _without_left_overs(tree.root, grouped.captures)
    captures = with_timers(with_facts(with_graphs(with_rich(captures)), facts), facts)
    return Listing(
        root=tree.root,
        captures=tuple(sorted(captures, key=lambda c: (c.run, c.session, c.files[0].path))),
        rejected=tuple(sorted((*grouped.rejected, *left_overs), key=lambda file: file.path)),
        scanned_files=tree.scanned_files,
        is_complete=not gaps,
        gaps=gaps,
        event_files=tuple(entry for entry in tree.entries if is_event_file(entry.path)),
    )


def _may_matter(path: str) -> bool:
    """Whether a file can be of interest by its name; most of a logdir's cannot."""
    return (
        path.endswith(_SUFFIXES)
        or _SESSIONS in path
        or is_event_file(path)
        or other_recorders.LOOKED_INTO.search(path) is not None
    )


def _sort_by_name(tree: Tree) -> tuple[dict[str, list[FoundFile]], list[FoundFile]]:
    """The files of each format, as far as names tell, and those to look into."""
    above = _parts_above(tree.root)
    files: dict[str, list[FoundFile]] = defaultdict(list)
    candidates: list[FoundFile] = []
    for entry in tree.entries:
        if _IGNORED.search(entry.path) or is_event_file(entry.path) or is_facts_file(entry.path):
            continue
        session = None if tree.only_file else _session_of(entry.path, above)
        file = FoundFile(entry, session, is_only_file=tree.only_file)
        format = format_by_path(entry.path)
        if format is not None:
            files[format.name].append(file)
        elif _is_candidate(file):
            candidates.append(file)
    owners = {format.name for format in FORMATS if format.owns_sessions}
    owned = {file.session for name in owners for file in files[name] if file.session}
    for name in files.keys() - owners:
        files[name] = [file for file in files[name] if file.session not in owned]
    return files, [
        file for file in candidates if file.session not in owned or _PYTORCH.search(file.entry.path)
    ]


def _is_candidate(file: FoundFile) -> bool:
    """Whether a file may be a trace of any name; in a session only those that are called so."""
    if file.session is not None:
        return claims_trace(file.entry.path)
    patterns = (_LOOKED_INTO, other_recorders.LOOKED_INTO)
    return file.is_only_file or any(each.search(file.entry.path) for each in patterns)


def _add_sniffed(
    tree: Tree, files: dict[str, list[FoundFile]], candidates: list[FoundFile]
) -> tuple[tuple[Rejected, ...], str]:
    """Look into files and add them to those of their formats.

    Returns what is no trace although its name says so, and a phrase on what was not looked into.
    """
    claims = {
        file.entry for file in candidates if file.is_only_file or claims_trace(file.entry.path)
    }
    sniffed, gap = sniff_files(tree.root, [file.entry for file in candidates], claims)
    rejected = []
    for file in candidates:
        found = sniffed.get(file.entry)
        if found is None:  # too many files
            continue
        if found.format is None and not found.is_profile:
            found = other_recorders.by_name(file.entry.path) or found
        if found.format is not None:
            files[found.format].append(
                FoundFile(file.entry, file.session, found.rank, found.run, file.is_only_file)
            )
        elif found.is_profile or file.entry in claims:
            rejected.append(Rejected(file.entry.path, found.reason))
    return tuple(rejected), gap


def _parts_above(root: str) -> tuple[str, ...]:
    """The last directories of the root: someone may point right into `plugins/profile`."""
    if is_url(root):
        parts = root.split("://", 1)[1].strip("/").split("/")
    else:
        parts = [*Path(os.path.abspath(root)).parts]  # noqa: PTH100 - resolve() would follow links
    return tuple(map(printable_name, parts[-3:]))


def _session_of(path: str, above: tuple[str, ...]) -> tuple[str, str] | None:
    """Run and session of a file in `RUN/plugins/profile/SESSION/`; None elsewhere."""
    parts = (*above, *path.split("/")[:-1])
    for index in range(len(parts) - 3, -1, -1):
        if parts[index] == "plugins" and parts[index + 1] == "profile":
            run = parts[len(above) : index] if index >= len(above) else ()
            return "/".join(run) or ".", "/".join(parts[index + 2 :])
    return None


def _without_left_overs(
    root: str, captures: Sequence[Capture]
) -> tuple[tuple[Capture, ...], tuple[Rejected, ...]]:
    """Captures without last recordings of a run that hold no work of a step, which are rejected.

    PyTorch's profiler begins a further cycle when a loop ends (`schedule` without `repeat`), and
    writes what the program did after it.
    """
    series: dict[tuple[str, str], list[Capture]] = defaultdict(list)
    for capture in captures:
        if capture.format in _WITH_LEFT_OVERS:
            series[series_of(capture)].append(capture)
    rejected: dict[str, Rejected] = {}
    for recordings in series.values():
        recordings.sort(key=order_of)
        while len(recordings) > 1 and _is_left_over(root, recordings[-1], recordings[-2]):
            capture = recordings.pop()
            rejected[capture.id] = Rejected(capture.files[0].path, LEFT_OVER)
    left = tuple(capture for capture in captures if capture.id not in rejected)
    return left, tuple(rejected.values())


def _is_left_over(root: str, last: Capture, before: Capture) -> bool:
    usual_bytes = min(file.size_bytes for file in before.files)
    return all(
        file.size_bytes < min(_LEFT_OVER_SHARE * usual_bytes, HEAD_BYTES)
        and _work_events(root, file) < _FEWEST_EVENTS
        for file in last.files
    )


@lru_cache(maxsize=256)
def _work_events(root: str, file: ProfileFile) -> int:
    """How many operators and kernels a small file with a step holds; many in any other file."""
    try:
        with open_file(root, file) as stream:
            content = inflate_head(stream.read(HEAD_BYTES), _INFLATED_BYTES)
    except PerfAdvisorError:
        return _FEWEST_EVENTS
    return len(_WORK.findall(content)) if b'"ProfilerStep#' in content else _FEWEST_EVENTS
