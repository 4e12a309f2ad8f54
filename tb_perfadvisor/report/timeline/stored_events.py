"""The events of one worker, stored beside its report so that a timeline needs no second parse.

Only what a timeline draws is stored: start, duration, name, kind and track, of at most the
`MAX_EVENTS` longest events. The number of events left out is stored too.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Sequence
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tb_perfadvisor.errors import PerfAdvisorError
from tb_perfadvisor.trace.integer_groups import unique_inverse
from tb_perfadvisor.trace.intervals import EMPTY, Intervals, intersect, single
from tb_perfadvisor.trace.kinds import EventKind, TrackKind
from tb_perfadvisor.trace.trace import Trace

# 25 bytes per event: about 12 MB in memory, and a few MB in the cache.
MAX_EVENTS = 500_000
# Per finding. A launch-bound finding in a long profile claims very many short gaps.
MAX_CLAIMS = 20_000

_COLUMNS = (
    *("start_ns", "duration_ns", "kind", "track", "name"),
    *("track_is_device", "track_device"),
    *("claim_finding", "claim_start_ns", "claim_end_ns"),
)
_TEXTS = ("names", "track_labels", "track_processes")


class TimelineEvents(Struct, frozen=True):
    """Events ordered by start. `name` indexes `names`; `track` indexes the columns of tracks."""

    worker: int
    trace_duration_ns: int
    left_out: int
    """How many events of the trace are not stored."""
    start_ns: NDArray[np.int64]
    duration_ns: NDArray[np.int64]
    kind: NDArray[np.uint8]
    track: NDArray[np.int32]
    name: NDArray[np.int32]
    track_is_device: NDArray[np.bool_]
    track_device: NDArray[np.int32]
    """Device index, -1 on the host."""
    claim_finding: NDArray[np.int32]
    """Index of the report's finding that claims the time, in ascending order."""
    claim_start_ns: NDArray[np.int64]
    claim_end_ns: NDArray[np.int64]
    names: tuple[str, ...]
    track_labels: tuple[str, ...]
    track_processes: tuple[str, ...]

    def claims_of(self, finding: int) -> Intervals:
        """The time that a finding's saving is taken from; empty without a saving."""
        rows = self.claim_finding == finding
        return np.column_stack((self.claim_start_ns[rows], self.claim_end_ns[rows]))


def collect_events(
    trace: Trace, worker: int, claims: Sequence[Intervals] = (), *, max_events: int = MAX_EVENTS
) -> TimelineEvents:
    """Collect the events that a timeline of a worker draws.

    Args:
        trace: The worker's trace.
        worker: Its index in the report's `workers`.
        claims: The time that each of the report's findings claims.
        max_events: Keep the longest events up to this number.
    """
    events = trace.events
    rows = np.arange(len(events))
    if rows.size > max_events:
        longest = np.argpartition(events.duration_ns, rows.size - max_events)[-max_events:]
        rows = np.sort(longest)
    used, name = unique_inverse(events.name[rows])
    claims = [_longest(intervals) for intervals in claims]
    claimed = np.concatenate(claims) if claims else EMPTY
    return TimelineEvents(
        worker=worker,
        trace_duration_ns=trace.duration_ns,
        left_out=len(events) - rows.size,
        start_ns=events.start_ns[rows],
        duration_ns=events.duration_ns[rows],
        kind=events.kind[rows],
        track=events.track[rows],
        name=name.astype(np.int32),
        track_is_device=trace.tracks.kind != TrackKind.HOST_THREAD,
        track_device=trace.tracks.device,
        claim_finding=np.repeat(
            np.arange(len(claims), dtype=np.int32), [len(intervals) for intervals in claims]
        ),
        claim_start_ns=claimed[:, 0],
        claim_end_ns=claimed[:, 1],
        names=tuple(trace.strings[index] for index in used.tolist()),
        track_labels=tuple(trace.text(index) for index in trace.tracks.label.tolist()),
        track_processes=tuple(trace.text(index) for index in trace.tracks.process.tolist()),
    )


def _longest(claims: Intervals) -> Intervals:
    """The longest intervals, in their original order."""
    if len(claims) <= MAX_CLAIMS:
        return claims
    rows = np.argpartition(claims[:, 1] - claims[:, 0], len(claims) - MAX_CLAIMS)[-MAX_CLAIMS:]
    longest: Intervals = claims[np.sort(rows)]
    return longest


def encode_events(stored: TimelineEvents) -> bytes:
    """Encode as a compressed npz without pickles."""
    arrays: dict[str, NDArray[Any]] = {name: getattr(stored, name) for name in _COLUMNS}
    for name in _TEXTS:
        text = json.dumps(list(getattr(stored, name)))
        arrays[name] = np.frombuffer(text.encode("ascii"), dtype=np.uint8)
    arrays["scalars"] = np.array(
        [stored.worker, stored.trace_duration_ns, stored.left_out], dtype=np.int64
    )
    buffer = io.BytesIO()
    np.savez_compressed(buffer, allow_pickle=False, **arrays)
    return buffer.getvalue()


def decode_events(content: bytes) -> TimelineEvents:
    """Decode what `encode_events` wrote.

    Raises:
        PerfAdvisorError: When the content is damaged or something else.
    """
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as archive:
            columns: dict[str, Any] = {name: archive[name] for name in _COLUMNS}
            for name in _TEXTS:
                columns[name] = tuple(json.loads(archive[name].tobytes()))
            worker, trace_duration_ns, left_out = archive["scalars"].tolist()
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise PerfAdvisorError(
            "the stored events cannot be read", hint="Analyze the capture again."
        ) from error
    return TimelineEvents(
        worker=worker,
        trace_duration_ns=trace_duration_ns,
        left_out=left_out,
        **columns,
    )


def select_events(
    stored: TimelineEvents, from_ns: int, to_ns: int, max_events: int, finding: int | None = None
) -> dict[str, Any]:
    """Select what a timeline from `from_ns` to `to_ns` shows, ready for JSON.

    Beyond `max_events`, tracks take turns to contribute their longest events. Otherwise a thread
    with many nested calls would push short kernels off the picture.

    Returns:
        `worker`, `from_ns`, `to_ns`, `tracks` (those with events in the range), `events` ordered
        by start with `track` as an index into `tracks`, `claims` (the time in the range that the
        finding claims, the longest intervals), `truncated` (events in the range that are not
        listed) and `left_out` (events of the whole trace that were never stored).
    """
    end_ns = stored.start_ns + stored.duration_ns
    # An event without duration counts if it starts in the range, any other if it overlaps it.
    inside = np.flatnonzero(
        (stored.start_ns < to_ns)
        & ((end_ns > from_ns) | ((stored.duration_ns == 0) & (stored.start_ns >= from_ns)))
    )
    total = inside.size
    present, track = unique_inverse(stored.track[inside])
    if total > max_events:
        chosen = np.sort(_longest_by_turns(track, stored.duration_ns[inside], max_events))
        inside, track = inside[chosen], track[chosen]
    kinds, kind_index = unique_inverse(stored.kind[inside])
    kind_names = [EventKind(kind).name.lower() for kind in kinds.tolist()]
    return {
        "worker": stored.worker,
        "from_ns": from_ns,
        "to_ns": to_ns,
        "tracks": [
            {
                "label": stored.track_labels[row],
                "process": stored.track_processes[row],
                "kind": "device" if stored.track_is_device[row] else "host",
                "device": int(device) if (device := stored.track_device[row]) >= 0 else None,
            }
            for row in present.tolist()
        ],
        "events": [
            {
                "track": track_index,
                "start_ns": start_ns,
                "duration_ns": duration_ns,
                "name": stored.names[name],
                "kind": kind_names[kind],
            }
            for track_index, start_ns, duration_ns, name, kind in zip(
                track.tolist(),
                stored.start_ns[inside].tolist(),
                stored.duration_ns[inside].tolist(),
                stored.name[inside].tolist(),
                kind_index.tolist(),
                strict=True,
            )
        ],
        "claims": _claims(stored, from_ns, to_ns, max_events, finding),
        "truncated": total - inside.size,
        "left_out": stored.left_out,
    }


def _claims(
    stored: TimelineEvents, from_ns: int, to_ns: int, max_claims: int, finding: int | None
) -> list[list[int]]:
    if finding is None:
        return []
    claims = intersect(stored.claims_of(finding), single(from_ns, to_ns))
    if len(claims) > max_claims:
        longest_first = np.argsort(claims[:, 0] - claims[:, 1], kind="stable")
        claims = claims[np.sort(longest_first[:max_claims])]
    rows: list[list[int]] = claims.tolist()
    return rows


def _longest_by_turns(
    track: NDArray[np.int64], duration_ns: NDArray[np.int64], count: int
) -> NDArray[np.int64]:
    """Positions of `count` events: each track's longest, then each track's second longest, etc.

    Ties go to the first track.
    """
    order = np.lexsort((-duration_ns, track))
    sizes = np.bincount(track)
    first = np.repeat(np.cumsum(sizes) - sizes, sizes)
    turn = np.arange(order.size) - first
    return order[np.lexsort((-duration_ns[order], turn))[:count]]
