"""The events of one worker, kept beside its report, so that a time line needs no second parse.

Only what a time line draws is kept: when, how long, what, where. At most `MAX_EVENTS` stay,
the longest; what is left out is counted and said.
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

# 25 bytes an event: about 12 MB in memory, and a few MB in the cache.
MAX_EVENTS = 500_000
# Of one finding: what a launch-bound step of a long profile claims piece by piece.
MAX_CLAIMS = 20_000

_COLUMNS = (
    *("start_ns", "duration_ns", "kind", "track", "name"),
    *("track_is_device", "track_device"),
    *("claim_finding", "claim_start_ns", "claim_end_ns"),
)
_TEXTS = ("names", "track_labels", "track_processes")


class Window(Struct, frozen=True):
    """Events in order of start. `name` and `track` are indices of `names`, `track_labels`."""

    worker: int
    duration_ns_total: int
    """Of the trace."""
    left_out: int
    """Events of the trace that are not kept."""
    start_ns: NDArray[np.int64]
    duration_ns: NDArray[np.int64]
    kind: NDArray[np.uint8]
    track: NDArray[np.int32]
    name: NDArray[np.int32]
    track_is_device: NDArray[np.bool_]
    track_device: NDArray[np.int32]
    """Device index, -1 on the host."""
    claim_finding: NDArray[np.int32]
    """Which of the report's findings claims the time; the claims stand in their order."""
    claim_start_ns: NDArray[np.int64]
    claim_end_ns: NDArray[np.int64]
    names: tuple[str, ...]
    track_labels: tuple[str, ...]
    track_processes: tuple[str, ...]

    def claims_of(self, finding: int) -> Intervals:
        """The time that a finding's saving is taken from; none for a finding without one."""
        rows = self.claim_finding == finding
        return np.column_stack((self.claim_start_ns[rows], self.claim_end_ns[rows]))


def make_window(
    trace: Trace, worker: int, claims: Sequence[Intervals] = (), *, max_events: int = MAX_EVENTS
) -> Window:
    """Keep what a time line of a worker draws.

    Args:
        trace: The worker's trace.
        worker: Its index in the report's `workers`.
        claims: The time that each of the report's findings claims.
        max_events: How many events to keep, the longest.
    """
    events = trace.events
    rows = np.arange(len(events))
    if rows.size > max_events:
        longest = np.argpartition(events.duration_ns, rows.size - max_events)[-max_events:]
        rows = np.sort(longest)
    used, name = unique_inverse(events.name[rows])
    kept = [_longest(one) for one in claims]
    claimed = np.concatenate(kept) if kept else EMPTY
    return Window(
        worker=worker,
        duration_ns_total=trace.duration_ns,
        left_out=len(events) - rows.size,
        start_ns=events.start_ns[rows],
        duration_ns=events.duration_ns[rows],
        kind=events.kind[rows],
        track=events.track[rows],
        name=name.astype(np.int32),
        track_is_device=trace.tracks.kind != TrackKind.HOST_THREAD,
        track_device=trace.tracks.device,
        claim_finding=np.repeat(np.arange(len(kept), dtype=np.int32), [len(one) for one in kept]),
        claim_start_ns=claimed[:, 0],
        claim_end_ns=claimed[:, 1],
        names=tuple(trace.strings[index] for index in used.tolist()),
        track_labels=tuple(trace.text(index) for index in trace.tracks.label.tolist()),
        track_processes=tuple(trace.text(index) for index in trace.tracks.process.tolist()),
    )


def _longest(claims: Intervals) -> Intervals:
    """The longest of the intervals, in their order."""
    if len(claims) <= MAX_CLAIMS:
        return claims
    rows = np.argpartition(claims[:, 1] - claims[:, 0], len(claims) - MAX_CLAIMS)[-MAX_CLAIMS:]
    longest: Intervals = claims[np.sort(rows)]
    return longest


def encode_window(window: Window) -> bytes:
    """The window as a compressed npz without pickles."""
    arrays: dict[str, NDArray[Any]] = {name: getattr(window, name) for name in _COLUMNS}
    for name in _TEXTS:
        text = json.dumps(list(getattr(window, name)))
        arrays[name] = np.frombuffer(text.encode("ascii"), dtype=np.uint8)
    arrays["scalars"] = np.array(
        [window.worker, window.duration_ns_total, window.left_out], dtype=np.int64
    )
    buffer = io.BytesIO()
    np.savez_compressed(buffer, allow_pickle=False, **arrays)
    return buffer.getvalue()


def decode_window(content: bytes) -> Window:
    """The window that `encode_window` wrote.

    Raises:
        PerfAdvisorError: When the content is not that.
    """
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as archive:
            stored: dict[str, Any] = {name: archive[name] for name in _COLUMNS}
            for name in _TEXTS:
                stored[name] = tuple(json.loads(archive[name].tobytes()))
            worker, duration_ns_total, left_out = archive["scalars"].tolist()
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise PerfAdvisorError(
            "the stored events cannot be read", hint="Analyze the capture again."
        ) from error
    return Window(
        worker=worker,
        duration_ns_total=duration_ns_total,
        left_out=left_out,
        **stored,
    )


def select(
    window: Window, from_ns: int, to_ns: int, max_events: int, finding: int | None = None
) -> dict[str, Any]:
    """What a time line from `from_ns` to `to_ns` shows, ready for JSON.

    Beyond `max_events` each track keeps its longest events, turn by turn: a thread of nested
    calls must not push short kernels off the picture.

    Returns:
        `worker`, `from_ns`, `to_ns`, `tracks` (those with events here), `events` in order of
        start with `track` an index of `tracks`, `claims` (what the finding claims of this time,
        the longest intervals), `truncated` (events here that are not listed) and `left_out`
        (events of the whole trace that were never stored).
    """
    end_ns = window.start_ns + window.duration_ns
    # An instant counts where it stands; anything longer when it overlaps.
    inside = np.flatnonzero(
        (window.start_ns < to_ns)
        & ((end_ns > from_ns) | ((window.duration_ns == 0) & (window.start_ns >= from_ns)))
    )
    total = inside.size
    present, track = unique_inverse(window.track[inside])
    if total > max_events:
        chosen = np.sort(_longest_by_turns(track, window.duration_ns[inside], max_events))
        inside, track = inside[chosen], track[chosen]
    kinds, kind_index = unique_inverse(window.kind[inside])
    kind_names = [EventKind(kind).name.lower() for kind in kinds.tolist()]
    return {
        "worker": window.worker,
        "from_ns": from_ns,
        "to_ns": to_ns,
        "tracks": [
            {
                "label": window.track_labels[row],
                "process": window.track_processes[row],
                "kind": "device" if window.track_is_device[row] else "host",
                "device": int(device) if (device := window.track_device[row]) >= 0 else None,
            }
            for row in present.tolist()
        ],
        "events": [
            {
                "track": track_index,
                "start_ns": start_ns,
                "duration_ns": duration_ns,
                "name": window.names[name],
                "kind": kind_names[kind],
            }
            for track_index, start_ns, duration_ns, name, kind in zip(
                track.tolist(),
                window.start_ns[inside].tolist(),
                window.duration_ns[inside].tolist(),
                window.name[inside].tolist(),
                kind_index.tolist(),
                strict=True,
            )
        ],
        "claims": _claims(window, from_ns, to_ns, max_events, finding),
        "truncated": total - inside.size,
        "left_out": window.left_out,
    }


def _claims(
    window: Window, from_ns: int, to_ns: int, max_claims: int, finding: int | None
) -> list[list[int]]:
    if finding is None:
        return []
    found = intersect(window.claims_of(finding), single(from_ns, to_ns))
    if len(found) > max_claims:
        found = found[np.sort(np.argsort(found[:, 0] - found[:, 1], kind="stable")[:max_claims])]
    listed: list[list[int]] = found.tolist()
    return listed


def _longest_by_turns(
    track: NDArray[np.int64], duration_ns: NDArray[np.int64], count: int
) -> NDArray[np.int64]:
    """Positions of `count` events: every track's longest, then every second longest and so on.

    Ties go to the track that comes first.
    """
    order = np.lexsort((-duration_ns, track))
    sizes = np.bincount(track)
    first = np.repeat(np.cumsum(sizes) - sizes, sizes)
    turn = np.arange(order.size) - first
    return order[np.lexsort((-duration_ns[order], turn))[:count]]
