"""What events are, and events that begin and end apart."""

from __future__ import annotations

import re
from collections import defaultdict
from enum import IntEnum
from typing import Any

import msgspec

from tb_perfadvisor.ingest.json_trace.numbers import thread_key, to_nanoseconds
from tb_perfadvisor.ingest.kineto.decode.schema import Event
from tb_perfadvisor.patterns import regex


class Role(IntEnum):
    """Which columns to decode for an event."""

    IGNORED = 0
    OPERATOR = 1
    """Operators and annotations of host threads, with shapes and sequence numbers."""
    RUNTIME = 2
    """Calls of a device's runtime or driver, with a correlation."""
    DEVICE = 3
    """Events on a device's stream, with device, stream and correlation."""
    PLAIN = 4
    """Host events of which only name and time are used."""
    PYTHON = 5
    """Calls of Python functions, with the calls that they are inside."""


_OLD_AND_NEW: dict[str, Role] = {
    "cpu_op": Role.OPERATOR,
    "Operator": Role.OPERATOR,
    "user_annotation": Role.OPERATOR,
    "python_function": Role.PYTHON,
    "overhead": Role.PLAIN,
    "Runtime": Role.RUNTIME,
    "kernel": Role.DEVICE,
    "Kernel": Role.DEVICE,
    "gpu_memcpy": Role.DEVICE,
    "Memcpy": Role.DEVICE,
    "gpu_memset": Role.DEVICE,
    "Memset": Role.DEVICE,
    "gpu_user_annotation": Role.DEVICE,
    "cuda_sync": Role.DEVICE,
    "mtia_ccp_events": Role.DEVICE,
    "hpu_op": Role.DEVICE,
}
LEGACY_PROCESSES = {"CPU functions": "Operator", "CUDA functions": "Kernel"}
"""The categories of events that have none, by the process that torch.autograd's profiler states
when it writes a list of its own (`EventList.export_chrome_trace`)."""
COUNTERS = frozenset({"gpu_pm_counter", "hardware_counters"})
"""Samples of a GPU's hardware counters (`CUPTI_PM_SAMPLING_METRICS`): an event of phase C for each
metric and moment. Kineto calls them the latter (libkineto/src/output_json.cpp, August 2026)."""
# Known categories that are not used: flows, spans, counters and marks.
_IGNORED_CATEGORIES = frozenset(
    {
        "",
        "Trace",
        "ac2g",
        "fwdbwd",
        "async",
        "async_cpu_to_gpu",
        "async_gpu",
        "collective_comm",
        "cpu_instant_event",
        "cuda_event",
        "cuda_profiler_range",
        "external_correlation",
        *COUNTERS,
        "mtia_counters",
        "mtia_insight",
        "xpu_scope_profiler",
        "xpu_sync",
    }
)
_RUNTIME_CATEGORY = regex(r"^[a-z0-9]+_(runtime|driver)$", re.IGNORECASE)


def role_of(category: str) -> Role:
    """The role of a category."""
    role = _OLD_AND_NEW.get(category)
    if role is not None:
        return role
    # cuda, xpu, mtia, hpu, glow, privateuse1 and future devices.
    return Role.RUNTIME if _RUNTIME_CATEGORY.match(category) else Role.IGNORED


def is_known(category: str) -> bool:
    """Whether Kineto writes a category, used or not."""
    return role_of(category) is not Role.IGNORED or category in _IGNORED_CATEGORIES


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
