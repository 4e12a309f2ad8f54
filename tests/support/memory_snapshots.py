"""Synthetic memory snapshots, in the form that torch/cuda/memory.py documents.

They are written step by step: each call is an entry of the history, a microsecond later.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

from tb_perfadvisor.ingest.memory_snapshots.reader import read_memory_snapshot
from tb_perfadvisor.trace import Source, Trace

START_US = 1_700_000_000_000_000
BASE = 0x7F00_0000_0000
Frame = tuple[str, int, str]
"""File, line, function."""


def frames(*stack: Frame) -> list[dict[str, Any]]:
    """A call stack, the innermost frame first."""
    return [{"filename": file, "line": line, "name": name} for file, line, name in stack]


class Snapshot:
    """One device's history and what it holds at the end."""

    def __init__(self, device: int = 0) -> None:
        self.device = device
        self.now_us = START_US
        self.history: list[dict[str, Any]] = []
        self.annotations: list[dict[str, Any]] = []
        self.settings: dict[str, Any] = {"expandable_segments": False}
        self._segments: dict[int, tuple[int, list[dict[str, Any]]]] = {}
        self._next = BASE

    def _add(self, action: str, address: int | None, size: int, stack: Any, **more: Any) -> None:
        entry = {"action": action, "size": size, "stream": 0, "time_us": self.now_us, **more}
        if address is not None:
            entry["addr"] = address
        self.history.append({**entry, "frames": list(stack)})
        self.now_us += 1

    def wait(self, us: int) -> Snapshot:
        """Let time pass."""
        self.now_us += us
        return self

    def segment(self, size: int, *, recorded: bool = True, stack: Any = ()) -> int:
        """Get a segment from the driver; returns its address."""
        address, self._next = self._next, self._next + size + (1 << 30)
        self._segments[address] = (size, [])
        if recorded:
            self._add("segment_alloc", address, size, stack)
        return address

    def give_back(self, address: int, stack: Any = ()) -> Snapshot:
        """Give a segment back to the driver."""
        size, _ = self._segments.pop(address)
        self._add("segment_free", address, size, stack)
        return self

    def holds(self, segment: int, address: int, size: int, stack: Any = ()) -> Snapshot:
        """A block that is in use at the end, whether its allocation was recorded or not."""
        self._segments[segment][1].append(
            {
                "address": address,
                "size": size,
                "requested_size": size,
                "state": "active_allocated",
                "frames": list(stack),
            }
        )
        return self

    def allocate(self, address: int, size: int, stack: Any = ()) -> Snapshot:
        """Allocate."""
        self._add("alloc", address, size, stack)
        return self

    def free(self, address: int, size: int, stack: Any = ()) -> Snapshot:
        """Give memory back, and see that no stream uses it any longer."""
        for _, blocks in self._segments.values():
            blocks[:] = [block for block in blocks if block["address"] != address]
        self._add("free_requested", address, size, stack)
        self._add("free_completed", address, size, stack)
        return self

    def fail(self, size: int, device_free: int, stack: Any = ()) -> Snapshot:
        """Run out of memory."""
        self._add("oom", None, size, stack, device_free=device_free)
        return self

    def annotate(self, name: str, duration_us: int = 1) -> Snapshot:
        """Begin a named range, which ends so much later."""
        for stage, at_us in (("START", self.now_us), ("END", self.now_us + duration_us)):
            self.annotations.append(
                {"stage": stage, "name": name, "device": self.device, "time_us": at_us}
            )
        return self

    def content(self) -> dict[str, Any]:
        """What `torch.cuda.memory._snapshot()` returns."""
        return {
            "segments": [
                self._segment(address, size, blocks)
                for address, (size, blocks) in self._segments.items()
            ],
            "device_traces": [*([] for _ in range(self.device)), self.history],
            "allocator_settings": self.settings,
            "external_annotations": self.annotations,
        }

    def _segment(self, address: int, size: int, blocks: list[dict[str, Any]]) -> dict[str, Any]:
        """A segment whose blocks fill it: what is not in use is free."""
        filled, at = [], address
        for block in sorted(blocks, key=lambda block: block["address"]):
            filled += [_free(at, block["address"] - at), block]
            at = block["address"] + block["size"]
        filled.append(_free(at, address + size - at))
        used = sum(block["size"] for block in blocks)
        return {
            "device": self.device,
            "address": address,
            "total_size": size,
            "allocated_size": used,
            "active_size": used,
            "requested_size": used,
            "stream": 0,
            "segment_type": "large",
            "segment_pool_id": (0, 0),
            "is_expandable": False,
            "frames": [],
            "blocks": [block for block in filled if block["size"]],
        }

    def pickled(self, protocol: int = 4) -> bytes:
        """The file."""
        return pickle.dumps(self.content(), protocol)

    def trace(self) -> Trace:
        """What is read from the file."""
        return read(self.pickled())


class Heap:
    """A history in which sizes alone matter: addresses follow by themselves.

    Args:
        earlier: Sizes of what was allocated before the history.
    """

    def __init__(self, *earlier: int) -> None:
        self.snapshot = Snapshot()
        self._segment = self.snapshot.segment(1 << 38, recorded=False)
        self._next = self._segment
        self._held: dict[int, tuple[int, Any]] = {}
        for size in earlier:
            self._held[self._address(size)] = (size, ())

    def _address(self, size: int) -> int:
        address, self._next = self._next, self._next + size
        return address

    def make(self, size: int, *stack: Frame) -> int:
        """Allocate; returns the address."""
        address, frames_of = self._address(size), frames(*stack)
        self.snapshot.allocate(address, size, frames_of)
        self._held[address] = (size, frames_of)
        return address

    def drop(self, *addresses: int) -> None:
        """Free."""
        for address in addresses:
            size, _ = self._held.pop(address)
            self.snapshot.free(address, size)

    def pickled(self) -> bytes:
        """The file. What was not dropped is in use at the end."""
        for address, (size, stack) in self._held.items():
            self.snapshot.holds(self._segment, address, size, stack)
        return self.snapshot.pickled()

    def trace(self) -> Trace:
        """What is read from the file."""
        return read(self.pickled())


def training_snapshot() -> bytes:
    """Three steps: activations, gradients, and the optimizer's state in the first one."""
    heap = Heap(1 << 24)
    for number in range(3):
        activation = heap.make(1 << 23, ("/p/model.py", 3, "forward"))
        gradient = heap.make(1 << 22, ("/v/torch/autograd/__init__.py", 5, "backward"))
        heap.drop(activation)
        heap.snapshot.annotate("Optimizer.step#Adam.step", duration_us=9)
        if number == 0:
            heap.make(1 << 23, ("/v/torch/optim/adam.py", 7, "_init_group"))
        heap.snapshot.wait(9)
        heap.drop(gradient)
    return heap.pickled()


def _free(address: int, size: int) -> dict[str, Any]:
    return {
        "address": address,
        "size": size,
        "requested_size": 0,
        "state": "inactive",
        "frames": [],
    }


def read(data: bytes, path: str = "memory.pickle") -> Trace:
    """Read a snapshot from memory."""
    source = Source(path, "memory-snapshot", is_synthetic=True)
    return read_memory_snapshot(io.BytesIO(data), source)
