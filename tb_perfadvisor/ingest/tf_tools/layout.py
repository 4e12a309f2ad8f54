"""Lays out sums of steps as a trace: one event per part of each step, end to end.

Each event is as long as its sum and lies on the thread or device of its part, so that attribution
returns the parts of each step. The order of events within a step is arbitrary.
"""

from __future__ import annotations

from typing import Final, Literal

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tb_perfadvisor.ingest.tf_tools.contents import Contents, StepPart, StepSums
from tb_perfadvisor.trace import (
    Assembler,
    CopyDirection,
    Device,
    EventKind,
    Precision,
    TrackKind,
)
from tb_perfadvisor.units import NS_PER_MS

Int32s = NDArray[np.int32]
Int64s = NDArray[np.int64]


class _Role(Struct, frozen=True):
    """How a part appears in the trace."""

    label: str
    kind: EventKind
    direction: CopyDirection = CopyDirection.UNKNOWN
    operation: str = ""


# In the order of layout. Preparing launches is RUNTIME, because a LAUNCH is one call that is linked
# to one device event.
_ROLES: Final[dict[StepPart, _Role]] = {
    StepPart.INPUT: _Role("the input pipeline", EventKind.INPUT_WAIT),
    StepPart.COMPILE: _Role("compilation", EventKind.COMPILE),
    StepPart.LAUNCH: _Role("preparing launches", EventKind.RUNTIME),
    StepPart.HOST_COMPUTE: _Role("operators on the host", EventKind.OPERATOR),
    StepPart.TO_DEVICE: _Role(
        "copies to the device", EventKind.COPY, direction=CopyDirection.HOST_TO_DEVICE
    ),
    StepPart.COMPUTE: _Role("device compute", EventKind.KERNEL),
    StepPart.COLLECTIVES: _Role("collectives", EventKind.COLLECTIVE, operation="all-reduce"),
    StepPart.BETWEEN_CORES: _Role(
        "sends and receives between cores", EventKind.COLLECTIVE, operation="send and receive"
    ),
    StepPart.DEVICE_TO_DEVICE: _Role(
        "copies from device memory to device memory",
        EventKind.COPY,
        direction=CopyDirection.DEVICE_TO_DEVICE,
    ),
    StepPart.OUTPUT: _Role(
        "output to the host", EventKind.COPY, direction=CopyDirection.DEVICE_TO_HOST
    ),
}
_INFEED: Final = _Role("infeed", EventKind.INFEED_WAIT)
_ON_DEVICE: Final = (
    EventKind.KERNEL,
    EventKind.COLLECTIVE,
    EventKind.COPY,
    EventKind.INFEED_WAIT,
)


def _name(step: int) -> str:
    """The profiler numbers steps of programs without numbers by -1."""
    return f"TensorFlow step {step}" if step >= 0 else "TensorFlow step"


def add_steps(assembler: Assembler, contents: Contents) -> tuple[Device, ...]:
    """Lay out the steps and return the devices that they ran on.

    `contents` has what the session's files hold, merged.
    """
    steps = contents.steps
    kind = _device_kind(contents.device_type)
    used = {part for step in steps for part in step.parts_ms}
    has_device = any(part in used and role.kind in _ON_DEVICE for part, role in _ROLES.items())
    host = assembler.add_track(TrackKind.HOST_THREAD, label="Host: sums by step")
    device = (
        assembler.add_track(TrackKind.DEVICE_STREAM, device=0, label="Device: sums by step")
        if has_device
        else host
    )
    duration = _whole_ns(np.array([step.duration_ms for step in steps]))
    start = np.cumsum(duration) - duration
    assembler.add_events(
        start,
        duration,
        kind=EventKind.STEP,
        name=[assembler.intern(_name(step.number)) for step in steps],
        track=host,
        step=[step.number if 0 <= step.number < 2**31 else -1 for step in steps],
    )
    begin = np.zeros_like(duration)
    waiting = _part_ms(steps, StepPart.WAITING)
    reached_ms = np.zeros(len(steps))
    for part, role in _ROLES.items():
        if part is StepPart.INPUT and has_device and kind != "gpu":
            role = _INFEED
        # Round the ends, not the lengths, so that parts that fill the step leave no gap. Parts that
        # exceed the step are cut at its end; a note reports them.
        reached_ms = (
            reached_ms + _part_ms(steps, part) + (waiting if part is StepPart.COLLECTIVES else 0)
        )
        end = np.minimum(_whole_ns(reached_ms), duration)
        is_present = end > begin
        events = assembler.add_events(
            (start + begin)[is_present],
            (end - begin)[is_present],
            kind=role.kind,
            name=assembler.intern(f"{role.label} (sum of the step)"),
            track=device if role.kind in _ON_DEVICE else host,
        )
        _describe(assembler, role, events, contents, _whole_ns(waiting[is_present]))
        begin = end
    if not has_device and kind == "other":
        return ()
    return tuple(
        Device(
            index=index,
            name=contents.device_type,
            kind=kind,
            memory_bytes=contents.memory_bytes,
        )
        for index in range(contents.device_count or 1)
    )


def _describe(
    assembler: Assembler, role: _Role, events: Int32s, contents: Contents, waiting: Int64s
) -> None:
    """Add the attributes of a part's events."""
    if role.kind == EventKind.KERNEL:
        assembler.add_kernels(events, precision=_only_precision(contents))
    elif role.kind == EventKind.COPY:
        assembler.add_copies(events, direction=role.direction)
    elif role.kind == EventKind.COLLECTIVE:
        has_waiting = role is _ROLES[StepPart.COLLECTIVES] and bool(waiting.any())
        assembler.add_collectives(
            events,
            operation=assembler.intern(role.operation),
            waiting_ns=waiting if has_waiting else -1,
        )


def _only_precision(contents: Contents) -> Precision:
    """The precision of all compute; unknown if there are several."""
    shares = contents.precision or {}
    return next((width for width, share in shares.items() if share == 1), Precision.UNKNOWN)


def _part_ms(steps: tuple[StepSums, ...], part: StepPart) -> NDArray[np.float64]:
    """The time of a part in each step."""
    return np.array([step.parts_ms.get(part, 0.0) for step in steps])


def _whole_ns(values_ms: NDArray[np.float64]) -> Int64s:
    return np.rint(values_ms * NS_PER_MS).astype(np.int64)


def _device_kind(name: str) -> Literal["gpu", "tpu", "other"]:
    upper = name.upper()
    return "gpu" if "GPU" in upper else "tpu" if "TPU" in upper else "other"
