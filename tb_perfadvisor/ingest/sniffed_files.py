"""Recognizes files by their first bytes. Reads each state of a file once, and limits how many."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Sequence, Set

from tb_perfadvisor.errors import PerfAdvisorError, contained, log_bug
from tb_perfadvisor.ingest.files.access import read_heads
from tb_perfadvisor.ingest.files.compression import inflate_head
from tb_perfadvisor.ingest.files.tree import FileEntry, is_url
from tb_perfadvisor.ingest.format import HEAD_BYTES, Sniffed
from tb_perfadvisor.ingest.formats import sniff

# Data sets may hold a million JSON files; a trace has a name that says so, or few neighbors.
MAX_UNCLAIMED = 2_000
# Each is a request.
MAX_UNCLAIMED_REMOTE = 500
# The roots of one TensorBoard, or of a notebook's session.
_MAX_ROOTS = 16

# For each root, the files of its last listing. A file that has changed is another entry; one that
# is gone is forgotten with the next listing.
_remembered: OrderedDict[str, dict[tuple[FileEntry, bool], Sniffed]] = OrderedDict()


def sniff_files(
    root: str, entries: Sequence[FileEntry], claims: Set[FileEntry]
) -> tuple[dict[FileEntry, Sniffed], str]:
    """Recognize files.

    Args:
        root: `Tree.root`.
        entries: Which files.
        claims: Those whose names claim a trace: all of these are looked into.

    Returns:
        What each file is, in order of `entries`, and a phrase on those that were left out, if any.
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
