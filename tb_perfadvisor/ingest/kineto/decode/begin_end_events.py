"""Joins begin and end events (`B`, `E`) into complete events."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import msgspec

from tb_perfadvisor.ingest.json_trace.numbers import to_nanoseconds
from tb_perfadvisor.ingest.json_trace.threads import thread_key
from tb_perfadvisor.ingest.kineto.decode.schema import Event


class OpenEvents:
    """The events of each thread that have begun but not ended, as a stack."""

    def __init__(self) -> None:
        self._open: dict[tuple[Any, Any], list[Event]] = defaultdict(list)
        self.malformed = 0
        """Number of ends without a beginning so far."""

    def join(self, events: list[Event]) -> list[Event]:
        """The complete events that end in a slice, with the attributes of both events."""
        complete = []
        for event in events:
            if event.ph not in ("B", "E"):
                continue
            stack = self._open[thread_key(event.pid, event.tid)]
            if event.ph == "B":
                stack.append(event)
            elif stack:
                complete.append(_joined(stack.pop(), event))
            else:
                self.malformed += 1
        return complete

    def unfinished(self) -> list[Event]:
        """The events that were running when recording stopped, without a duration."""
        return [
            msgspec.structs.replace(event, ph="X", dur=None)
            for stack in self._open.values()
            for event in stack
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
