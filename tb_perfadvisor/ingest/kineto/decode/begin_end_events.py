"""Joins the begin and end events (`B`, `E`) of some recorders into complete ones."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import msgspec

from tb_perfadvisor.ingest.kineto.decode.numbers import to_nanoseconds
from tb_perfadvisor.ingest.kineto.decode.schema import Event
from tb_perfadvisor.ingest.kineto.decode.value_indices import thread_key


class Spans:
    """Events that have begun, by thread: the last to begin is the first to end."""

    def __init__(self) -> None:
        """Start without any."""
        self._open: dict[tuple[Any, Any], list[Event]] = defaultdict(list)
        self.malformed = 0
        """Ends without a beginning so far."""

    def join(self, events: list[Event]) -> list[Event]:
        """What ends among the events of a slice, complete, with the attributes of both halves."""
        complete = []
        for event in events:
            if event.ph not in ("B", "E"):
                continue
            begun = self._open[thread_key(event.pid, event.tid)]
            if event.ph == "B":
                begun.append(event)
            elif begun:
                complete.append(_joined(begun.pop(), event))
            else:
                self.malformed += 1
        return complete

    def unfinished(self) -> list[Event]:
        """What was still running when recording stopped: events without a duration."""
        return [
            msgspec.structs.replace(event, ph="X", dur=None)
            for begun in self._open.values()
            for event in begun
        ]


def _joined(begin: Event, end: Event) -> Event:
    (start_ns, end_ns), is_valid = to_nanoseconds([begin.ts, end.ts])
    return msgspec.structs.replace(
        begin,
        ph="X",
        dur=int(end_ns - start_ns) / 1000 if is_valid.all() else None,
        name=end.name if begin.name is None else begin.name,
        cat=end.cat if begin.cat is None else begin.cat,
        args=end.args if begin.args is None else begin.args,
    )
