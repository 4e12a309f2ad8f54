"""Joins recordings of ranks that each log into a directory of their own: `rank0/`, `host1/`.

Names prove nothing: what joins them is what the files say. They are of one run if they name the
same group of all ranks, hold different ranks of it, and began at the same time. Files of older
versions name no groups: then all ranks must be there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Generic, TypeVar

from msgspec import Struct

from tb_perfadvisor.ingest.format import RunOfRank

_NEAR_NS = 60 * 10**9
"""Ranks begin to record at the same step. Clocks of hosts differ by seconds, and without a
synchronization ranks may be some steps apart."""

T = TypeVar("T")


class RankRecording(Struct, Generic[T], frozen=True):
    """What one directory holds of a recording."""

    directory: tuple[str, ...]
    ranks: tuple[int, ...]
    run: RunOfRank
    """Of its first rank to begin."""
    traces: tuple[T, ...]


def join_directories(
    recordings: Sequence[RankRecording[T]],
) -> Iterator[tuple[tuple[str, ...], tuple[RankRecording[T], ...]]]:
    """The recordings that belong together, with the directory that they are of.

    Args:
        recordings: Of programs with several ranks. Their directories differ in one place: `rank0`
            and `rank1`, or `rank0/profile` and `rank1/profile`.

    Yields:
        The common parts of the directories' names, and the recordings.
    """
    remaining = list(recordings)
    for place in reversed(range(max((len(one.directory) for one in remaining), default=0))):
        groups: dict[object, list[RankRecording[T]]] = defaultdict(list)
        for recording in remaining:
            names = recording.directory
            if place < len(names):
                common = (*names[:place], None, *names[place + 1 :])
                groups[common, recording.run.world_size, recording.run.group].append(recording)
        for group in groups.values():
            for joined in _together(group):
                names = joined[0].directory
                yield (*names[:place], *names[place + 1 :]), joined
                remaining = [recording for recording in remaining if recording not in joined]


def _together(group: Sequence[RankRecording[T]]) -> list[tuple[RankRecording[T], ...]]:
    """The first recording of each directory, the second of each, and so on; [] without proof."""
    by_directory: Mapping[tuple[str, ...], list[RankRecording[T]]] = defaultdict(list)
    for recording in sorted(group, key=lambda recording: recording.run.start_ns):
        by_directory[recording.directory].append(recording)
    if len(by_directory) < 2 or len({len(found) for found in by_directory.values()}) > 1:
        return []
    turns = list(zip(*by_directory.values(), strict=True))
    last_ns = -1
    for turn in turns:
        begins = [recording.run.start_ns for recording in turn]
        ranks = [rank for recording in turn for rank in recording.ranks]
        is_proof = (
            last_ns < min(begins)
            and max(begins) - min(begins) <= _NEAR_NS
            and len(set(ranks)) == len(ranks)
            and max(ranks) < turn[0].run.world_size
            and (turn[0].run.group or len(ranks) == turn[0].run.world_size)
        )
        if not is_proof:
            return []
        last_ns = max(begins)
    return turns
