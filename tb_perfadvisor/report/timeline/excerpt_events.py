"""Selects the events of an excerpt for Perfetto."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tb_perfadvisor.report.timeline.stored_events import TimelineEvents
from tb_perfadvisor.trace.integer_groups import unique_inverse
from tb_perfadvisor.trace.intervals import intersect, single
from tb_perfadvisor.trace.kinds import EventKind


def select_events(
    stored: TimelineEvents, from_ns: int, to_ns: int, max_events: int, finding: int | None = None
) -> dict[str, Any]:
    """Select the reference worker's events from `from_ns` to `to_ns`.

    Beyond `max_events`, tracks take turns to contribute their longest events. Otherwise a thread
    with many nested calls would push short kernels off the picture.

    Returns:
        `worker`, `from_ns`, `to_ns`, `tracks` (those with events in the range), `events` ordered
        by start with `track` as an index into `tracks`, `claims` (the time in the range that the
        finding claims, the longest intervals), `truncated` (events in the range that are not
        listed) and `left_out` (events of the whole trace that were never stored).
    """
    end_ns, track_of = stored.end_ns, stored.track
    is_inside = (stored.start_ns < to_ns) & (
        # An event without duration counts if it starts in the range, any other if it overlaps it.
        (end_ns > from_ns) | ((stored.duration_ns == 0) & (stored.start_ns >= from_ns))
    )
    is_of_worker = stored.track_worker[track_of] == stored.worker
    inside = np.flatnonzero(is_inside & is_of_worker)
    inside = inside[np.lexsort((-stored.duration_ns[inside], stored.start_ns[inside]))]
    total = inside.size
    present, track = unique_inverse(track_of[inside])
    if total > max_events:
        chosen = np.sort(_longest_by_turns(track, stored.duration_ns[inside], max_events))
        inside, track = inside[chosen], track[chosen]
    kind_names = {kind.value: kind.name.lower() for kind in EventKind}
    return {
        "worker": stored.worker,
        "from_ns": from_ns,
        "to_ns": to_ns,
        "tracks": [
            {
                "label": stored.track_label[row],
                "process": stored.track_process[row],
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
                "name": stored.texts[name] if name >= 0 else "",
                "kind": kind_names[kind],
            }
            for track_index, start_ns, duration_ns, name, kind in zip(
                track.tolist(),
                stored.start_ns[inside].tolist(),
                stored.duration_ns[inside].tolist(),
                stored.name[inside].tolist(),
                stored.kind[inside].tolist(),
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
