"""A memory snapshot: what PyTorch's caching allocator did, and what it holds."""

from __future__ import annotations

from enum import IntEnum

from msgspec import Struct

from tb_perfadvisor.trace.tables import Int8, Int32, Int64, UInt8

NO_STACK = -1


class Action(IntEnum):
    """What the allocator did."""

    ALLOCATE = 0
    FREE = 1
    """The program gives memory back."""
    FREE_COMPLETED = 2
    """The last stream that uses the memory is done, so it can be used again."""
    SEGMENT_ALLOCATE = 3
    """The allocator gets memory from the driver: cudaMalloc, or a page that is mapped."""
    SEGMENT_FREE = 4
    """The allocator gives memory back to the driver."""
    OUT_OF_MEMORY = 5
    SNAPSHOT = 6
    OTHER = 7


class BlockState(IntEnum):
    """What a block is used for."""

    FREE = 0
    ALLOCATED = 1
    AWAITING_FREE = 2
    """Freed, but another stream may still use it."""


class AllocatorEvents(Struct, frozen=True):
    """The allocator's history, in order of time for each device; columns of shape (n,)."""

    action: UInt8
    """`Action`."""
    device: Int32
    at_ns: Int64
    """Wall-clock time; -1 before PyTorch 2.1, which did not record it."""
    address: Int64
    size_bytes: Int64
    """As the program asked for; the allocator rounds up. Of segments, the whole size."""
    stack: Int32
    """Index into the snapshot's stacks; `NO_STACK` if unknown."""
    driver_free_bytes: Int64
    """What the driver had left when memory ran out; -1 for other events, and if unknown."""

    def __len__(self) -> int:
        """Number of events."""
        return len(self.action)


class Segments(Struct, frozen=True):
    """What the allocator has from the driver when the snapshot is taken; columns of shape (n,)."""

    device: Int32
    address: Int64
    """-1 if unknown."""
    size_bytes: Int64
    is_expandable: Int8
    """1, 0, or -1 if unknown."""

    def __len__(self) -> int:
        """Number of segments."""
        return len(self.address)


class Blocks(Struct, frozen=True):
    """The parts of the segments, in their order; columns of shape (n,)."""

    segment: Int32
    """Row of the segments."""
    address: Int64
    size_bytes: Int64
    requested_bytes: Int64
    """What the program asked for; the size if the file does not say."""
    state: UInt8
    """`BlockState`."""
    stack: Int32

    def __len__(self) -> int:
        """Number of blocks."""
        return len(self.segment)


class Frame(Struct, frozen=True):
    """A line of code on a stack. Untrusted text."""

    file: str
    line: int
    """0 if unknown."""
    function: str


class Stacks(Struct, frozen=True):
    """Distinct call stacks, each from the innermost frame outward.

    Stack `i` has the frames `frame[offsets[i]:offsets[i + 1]]`.
    """

    frames: tuple[Frame, ...]
    frame: Int32
    """Index into `frames`."""
    offsets: Int64
    """Shape (stacks + 1,)."""

    def __len__(self) -> int:
        """Number of stacks."""
        return len(self.offsets) - 1

    def of(self, stack: int) -> tuple[Frame, ...]:
        """The frames of a stack; empty for `NO_STACK`."""
        if stack < 0:
            return ()
        rows = self.frame[self.offsets[stack] : self.offsets[stack + 1]]
        return tuple(self.frames[row] for row in rows.tolist())


class Annotations(Struct, frozen=True):
    """Ranges that the program or PyTorch named; columns of shape (n,), in order of start."""

    names: tuple[str, ...]
    name: Int32
    """Index into `names`."""
    device: Int32
    start_ns: Int64
    end_ns: Int64
    """-1 if the range was open when the snapshot was taken."""


class MemorySnapshot(Struct, frozen=True):
    """One file of `torch.cuda.memory._dump_snapshot`."""

    path: str
    events: AllocatorEvents
    segments: Segments
    blocks: Blocks
    stacks: Stacks
    annotations: Annotations
    expandable_segments: bool | None = None
    """The allocator's setting; None if the file does not say."""
    left_out: int = 0
    """Events and blocks without a size or an address."""

    @property
    def devices(self) -> tuple[int, ...]:
        """The devices with segments or events."""
        return tuple(sorted({*self.segments.device.tolist(), *_distinct(self.events.device)}))


def _distinct(column: Int32) -> list[int]:
    from tb_perfadvisor.trace.integer_groups import distinct

    return [int(value) for value in distinct(column)]
