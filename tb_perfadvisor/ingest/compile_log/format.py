"""Logs of `TORCH_TRACE`, named `dedicated_log_torch_trace_[rank_N_]RANDOM.log` by PyTorch."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from msgspec.structs import replace

from tb_perfadvisor.ingest.captures import (
    COMPILE_LOG_FORMAT,
    Capture,
    directory_of,
    make_capture,
    profile_file,
)
from tb_perfadvisor.ingest.compile_log.records import starts_a_log
from tb_perfadvisor.ingest.format import (
    Format,
    FoundFile,
    Grouped,
    Reader,
    Sniffed,
    reader_of_one_file,
)
from tb_perfadvisor.ingest.trace_names import rank_of_name, stem_of
from tb_perfadvisor.patterns import regex

_CLAIMED = regex(r"(?:^|/)dedicated_log_torch_trace_[^/]*\.log(?:\.gz)?$")
_RANK = regex(rb'"rank": (\d{1,7})[,}]')
_HASH_OF_NAME = regex(r"_(?:rank_\d+_)?[a-z0-9_]{8}$")


def _sniff(head: bytes, is_claimed: bool) -> Sniffed | None:
    if not starts_a_log(head):
        return None
    rank = _RANK.search(head)
    return Sniffed(COMPILE_LOG_FORMAT, rank=int(rank[1]) if rank else None)


def _group(files: Sequence[FoundFile], earlier: Grouped) -> Grouped:
    """Attach logs to the profiles of their directory, or of the one above; others stand alone."""
    by_directory: dict[str, list[FoundFile]] = defaultdict(list)
    for file in files:
        by_directory[directory_of(file.entry.path)].append(file)
    with_profiles = earlier.directories
    beside: dict[str, list[FoundFile]] = defaultdict(list)
    alone: list[Capture] = []
    for directory, logs in by_directory.items():
        owner = next(
            (place for place in (directory, directory_of(directory)) if place in with_profiles),
            None,
        )
        if owner is None:
            alone += _captures(directory, logs)
        else:
            beside[owner] += logs
    captures = (
        replace(
            capture,
            compile_logs=tuple(
                profile_file(log.entry, _rank(log))
                for log in beside[directory_of(capture.files[0].path)]
            ),
        )
        if directory_of(capture.files[0].path) in beside
        else capture
        for capture in earlier.captures
    )
    return Grouped((*captures, *alone), earlier.rejected)


def _captures(directory: str, logs: Sequence[FoundFile]) -> list[Capture]:
    """All ranks of a directory together, if each is there once; otherwise each log by itself."""
    ranks = {_rank(log) for log in logs}
    groups = [list(logs)] if None not in ranks and len(ranks) == len(logs) else [[x] for x in logs]
    return [
        make_capture(
            directory,
            _HASH_OF_NAME.sub("", stem) if len(group) > 1 else stem,
            COMPILE_LOG_FORMAT,
            [profile_file(log.entry, _rank(log)) for log in group],
        )
        for group in groups
        if (stem := stem_of(group[0].entry.path).removesuffix(".log"))
    ]


def _rank(log: FoundFile) -> int | None:
    named = rank_of_name(log.entry.path.rsplit("/", 1)[-1])
    return named if named is not None else log.rank


def _reader() -> Reader:
    from tb_perfadvisor.ingest.compile_log.reader import read_compile_log

    return reader_of_one_file(read_compile_log)


COMPILE_LOG = Format(
    name=COMPILE_LOG_FORMAT,
    label="log of torch.compile",
    claims=lambda path: _CLAIMED.search(path) is not None,
    sniff=_sniff,
    group=_group,
    reader=_reader,
    framework="pytorch",
)
