"""Executes small programs by the rules of CUDA, and records what a profiler would see.

Tests compare the replay with it, so both share no code: this executor is written from the
documentation ("CUDA C++ Programming Guide: Asynchronous concurrent execution"; "CUDA runtime
API: API synchronization behavior"), with fixed costs for each call.

* The host runs one operation at a time; a launch takes `CALL` and does not wait.
* Work starts `LATENCY` after its launch began, `GAP` after the work before it on its stream,
  and `SIGNAL` after the last work of a stream that its stream waits for, whichever is latest.
* A synchronization takes `SYNC`, or returns `AFTER` the end of what it waits for.
* A copy to pageable memory is a launch that returns `AFTER` the copy's end.
* A stream queues `DEPTH` pieces of work; a launch beyond that returns `CALL` after one has ended.
* The backward pass runs on another thread while the first one waits; the handover takes `HAND`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from tb_perfadvisor.testing import TraceBuilder
from tb_perfadvisor.testing.symbols import host
from tb_perfadvisor.trace import CopyDirection, EventKind, Trace

CALL, LATENCY, GAP, SIGNAL, SYNC, AFTER, HAND = 5_000, 7_000, 1_000, 2_000, 3_000, 4_000, 9_000
DEPTH = 1_000
MAIN, AUTOGRAD = "main", "autograd"


@dataclass(frozen=True)
class Work:
    """The host computes; a delay is what the fix removes."""

    duration_ns: int
    is_delay: bool = False


@dataclass(frozen=True)
class Launch:
    """Work on a stream, which may wait for another stream first."""

    stream: int
    duration_ns: int
    after_stream: int | None = None


@dataclass(frozen=True)
class Sync:
    """Waits for a stream, or for all of them."""

    stream: int | None = None


@dataclass(frozen=True)
class Item:
    """A blocking copy to the host, as `.item()` does it."""

    stream: int
    duration_ns: int = 2_000


@dataclass(frozen=True)
class Backward:
    """Operations that another thread runs."""

    operations: tuple[Operation, ...]


Operation = Work | Launch | Sync | Item | Backward


@dataclass
class Played:
    """One execution."""

    trace: Trace
    finished_ns: list[int]
    """When all that was begun by the end of each step was done."""


@dataclass
class Machine:
    """Clocks of the host and its streams, and the recorded events."""

    now: int = 0
    free: dict[int, int] = field(default_factory=dict)
    ends: dict[int, list[int]] = field(default_factory=dict)
    """When each launched kernel of a stream ended."""
    thread: str = MAIN
    builder: TraceBuilder = field(default_factory=TraceBuilder)
    calls: int = 0

    def run(self, operations: Sequence[Operation], *, waits: bool = True) -> None:
        for operation in operations:
            self.one(operation, waits=waits)

    def one(self, operation: Operation, *, waits: bool) -> None:
        began = self.now
        if isinstance(operation, Work):
            self.now += operation.duration_ns
            name = "delay" if operation.is_delay else "aten::copy_"
            self.builder.host(EventKind.OPERATOR, name, began, self.now, thread=self.thread)
        elif isinstance(operation, Launch):
            signaled = 0
            if operation.after_stream is not None:
                signaled = self.free.get(operation.after_stream, -SIGNAL) + SIGNAL
                self.now += 1_000
                self.builder.host(
                    EventKind.RUNTIME, "cudaStreamWaitEvent", began, self.now, thread=self.thread
                )
                began = self.now
            ends = self.ends.setdefault(operation.stream, [])
            room = max(began, ends[-DEPTH]) if len(ends) >= DEPTH else began
            start = self.start(operation.stream, room, signaled)
            self.now = room + CALL
            key = self.call(EventKind.LAUNCH, "cudaLaunchKernel", began)
            end = start + operation.duration_ns
            ends.append(end)
            self.free[operation.stream] = end
            self.builder.kernel("sgemm", start, end, stream=operation.stream, launched_by=key)
        elif isinstance(operation, Item):
            start = self.start(operation.stream, began, 0)
            end = start + operation.duration_ns
            self.free[operation.stream] = end
            self.now += CALL
            if waits:
                self.now = max(self.now, end + AFTER)
            key = self.call(EventKind.LAUNCH, "cudaMemcpyAsync", began)
            self.builder.copy(
                CopyDirection.DEVICE_TO_HOST, start, end, stream=operation.stream,
                launched_by=key, pageable=1,
            )  # fmt: skip
        elif isinstance(operation, Sync):
            if not waits:
                return
            streams = self.free if operation.stream is None else [operation.stream]
            done = max((self.free.get(stream, 0) for stream in streams), default=0)
            self.now = max(self.now + SYNC, done + AFTER)
            name = "cudaDeviceSynchronize" if operation.stream is None else "cudaStreamSynchronize"
            key = self.call(EventKind.SYNCHRONIZE, name, began)
            if operation.stream is not None:
                # With synchronization events, the profiler has a row on the stream.
                self.builder.add(
                    host("Stream Sync", EventKind.DEVICE_SYNC), began, self.now,
                    device=0, stream=operation.stream, launched_by=key,
                )  # fmt: skip
        else:
            self.thread, self.now = AUTOGRAD, self.now + HAND
            self.run(operation.operations, waits=waits)
            self.thread, self.now = MAIN, self.now + HAND

    def start(self, stream: int, launched: int, signaled: int) -> int:
        return max(launched + LATENCY, self.free.get(stream, -GAP) + GAP, signaled)

    def call(self, kind: EventKind, name: str, began: int) -> str:
        self.calls += 1
        key = f"call {self.calls}"
        self.builder.host(kind, name, began, self.now, thread=self.thread, key=key)
        return key


def play(
    steps: Sequence[Sequence[Operation]],
    repeats: int,
    *,
    waits: bool = True,
    marked_repeats: int = 1,
) -> Played:
    """Run the same steps repeatedly, and mark each of the last repeats as one."""
    machine = Machine()
    finished = []
    number = 0
    for repeat in range(repeats):
        began = machine.now
        for step in steps:
            machine.run(step, waits=waits)
            finished.append(max(machine.now, *machine.free.values(), 0))
        if repeat >= repeats - marked_repeats:
            machine.builder.step(number, began, machine.now)
            number += 1
    return Played(machine.builder.build(), finished)


def without_delays(operations: Sequence[Operation]) -> tuple[Operation, ...]:
    """The same operations without delays."""
    remaining: list[Operation] = []
    for operation in operations:
        if isinstance(operation, Backward):
            remaining.append(Backward(without_delays(operation.operations)))
        elif not (isinstance(operation, Work) and operation.is_delay):
            remaining.append(operation)
    return tuple(remaining)


def shortened(operations: Sequence[Operation], divisor: int) -> tuple[Operation, ...]:
    """The same operations with shorter kernels."""
    changed: list[Operation] = []
    for operation in operations:
        if isinstance(operation, Backward):
            changed.append(Backward(shortened(operation.operations, divisor)))
        elif isinstance(operation, Launch):
            changed.append(replace(operation, duration_ns=operation.duration_ns // divisor))
        else:
            changed.append(operation)
    return tuple(changed)
