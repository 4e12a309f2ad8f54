"""Plays the schedule of a program: when each operation starts, and how long it takes.

A TPU core executes its operations one after the other. Copies and collectives that it only starts
run beside it. They share the bandwidth of the main memory with the operations: a transfer proceeds
while an operation leaves bandwidth unused, and the core waits for the rest.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct, field

from demo_logs.record.compiled.schedule import Channel, CompiledOperation

_SHORTEST_PS = 1_000
"""A start, or a done that finds its transfer finished, takes some cycles, but not none."""


class Execution(Struct, frozen=True):
    """One execution of an operation."""

    operation: CompiledOperation
    start_ps: int
    duration_ps: int


class Timeline(Struct, frozen=True):
    """All executions of a program that is run once, in order of start; a loop precedes its body."""

    executions: tuple[Execution, ...]
    transfers: tuple[Execution, ...]
    """From start to finish, by the operation that started each."""
    duration_ps: int


class _Transfer(Struct):
    operation: CompiledOperation
    start_ps: int
    finish_ps: int
    """Work of its channel until it is finished, from the beginning of the program."""


class _Queue(Struct):
    """Transfers over one channel, one after the other."""

    queued_ps: int = 0
    """Work of all transfers so far."""
    done_ps: int = 0
    """What of it is done."""
    waiting: list[_Transfer] = field(default_factory=list)


class _Player(Struct):
    at_ps: int = 0
    executions: list[Execution] = field(default_factory=list)
    transfers: list[Execution] = field(default_factory=list)
    queues: dict[Channel, _Queue] = field(default_factory=dict)
    last_transfer: dict[str, tuple[Channel, int]] = field(default_factory=dict)

    def play(self, operations: Sequence[CompiledOperation]) -> None:
        for operation in operations:
            if operation.body:
                self._loop(operation)
            elif operation.waits_for:
                self._wait(operation)
            else:
                self._execute(operation, operation.duration_ps)
                if operation.transfer_ps:
                    self._start(operation)

    def _loop(self, operation: CompiledOperation) -> None:
        start_ps, place = self.at_ps, len(self.executions)
        for _ in range(operation.trips):
            self.play(operation.body)
        self.advance(operation.duration_ps, 0)
        loop = Execution(operation, start_ps, self.at_ps - start_ps)
        self.executions.insert(place, loop)

    def _execute(self, operation: CompiledOperation, duration_ps: int) -> None:
        duration_ps = max(duration_ps, _SHORTEST_PS)
        self.executions.append(Execution(operation, self.at_ps, duration_ps))
        self.advance(duration_ps, min(operation.memory_ps, duration_ps))

    def _start(self, operation: CompiledOperation) -> None:
        queue = self.queues.setdefault(operation.channel, _Queue())
        queue.queued_ps += operation.transfer_ps
        queue.waiting.append(_Transfer(operation, self.at_ps, queue.queued_ps))
        self.last_transfer[operation.name] = operation.channel, queue.queued_ps

    def _wait(self, operation: CompiledOperation) -> None:
        channel, finish_ps = self.last_transfer.get(operation.waits_for, ("memory", 0))
        queue = self.queues.setdefault(channel, _Queue())
        self._execute(operation, finish_ps - queue.done_ps)

    def advance(self, duration_ps: int, memory_ps: int) -> None:
        """Let time pass, in which the core itself uses the main memory for `memory_ps`."""
        for channel, queue in self.queues.items():
            free_ps = duration_ps - (memory_ps if channel == "memory" else 0)
            worked_ps = min(free_ps, queue.queued_ps - queue.done_ps)
            while queue.waiting and queue.waiting[0].finish_ps <= queue.done_ps + worked_ps:
                transfer = queue.waiting.pop(0)
                # Work proceeds evenly over the time that passes.
                part = (transfer.finish_ps - queue.done_ps) / max(free_ps, 1)
                end_ps = self.at_ps + round(duration_ps * part)
                length_ps = max(end_ps - transfer.start_ps, 1)
                self.transfers.append(Execution(transfer.operation, transfer.start_ps, length_ps))
            queue.done_ps += worked_ps
        self.at_ps += duration_ps


def play(operations: Sequence[CompiledOperation]) -> Timeline:
    """Play a program once.

    Args:
        operations: Its operations, as scheduled.
    """
    player = _Player()
    player.play(operations)
    left_ps = max((q.queued_ps - q.done_ps for q in player.queues.values()), default=0)
    duration_ps = player.at_ps
    # The program ends when its last transfer does, whether or not an operation waits for it.
    player.advance(left_ps, 0)
    return Timeline(
        tuple(player.executions),
        tuple(sorted(player.transfers, key=lambda transfer: transfer.start_ps)),
        duration_ps + left_ps,
    )
