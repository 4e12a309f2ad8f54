"""Parses texts with details of launches and copies, and shapes of operators."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from tb_perfadvisor.patterns import regex
from tb_perfadvisor.trace import CopyDirection

_PAIR: Final = regex(r"\b(\w+):([^\s]+)")

# Limits of GPUs. Some tracers write uninitialized memory (registers 2191500840).
_MAX_REGISTERS: Final = 1024
_MAX_THREADS: Final = 1024
_MAX_SHARED_BYTES: Final = 1 << 20
_MAX_BLOCKS: Final = 2**31 - 1


class LaunchDetails(Struct, frozen=True):
    """How a kernel was launched; -1 if unknown."""

    grid_blocks: int = -1
    block_threads: int = -1
    registers: int = -1
    shared_memory_bytes: int = -1
    occupancy_share: float = float("nan")


class CopyDetails(Struct, frozen=True):
    """Attributes of a copy; -1 if unknown."""

    size_bytes: int = -1
    direction: CopyDirection = CopyDirection.UNKNOWN
    pageable: int = -1


def parse_launch(text: str) -> LaunchDetails:
    """Parse `regs:32 static_shared:0 dynamic_shared:0 grid:64,1,1 block:256,1,1 occ_pct:100`.

    ROCm writes `grid:64,1,1 block:256,1,1 private_mem:0 group_mem:0 occ_pct:0`, old TensorFlow
    `regs:32 shm:0 grid:64,1,1 block:256,1,1`. An impossible value makes all of them unknown.
    """
    pairs = dict(_PAIR.findall(text))
    grid = _product(pairs.get("grid"))
    block = _product(pairs.get("block"))
    registers = _whole(pairs.get("regs"))
    shared_parts = [
        _whole(pairs[key])
        for key in ("static_shared", "dynamic_shared", "shm", "group_mem")
        if key in pairs
    ]
    shared = sum(shared_parts) if shared_parts else -1
    for value, least, most in (
        (grid, 1, _MAX_BLOCKS),
        (block, 1, _MAX_THREADS),
        (registers, 0, _MAX_REGISTERS),
        (shared, 0, _MAX_SHARED_BYTES),
    ):
        if value != -1 and not least <= value <= most:
            return LaunchDetails()
    occupancy = _share(pairs.get("occ_pct"))
    # ROCm writes 0 for unknown registers.
    return LaunchDetails(grid, block, registers or -1, shared, occupancy)


def parse_copy(text: str) -> CopyDetails:
    """Parse `kind_src:pinned kind_dst:device size:1024 dest:0 async:1` and older forms."""
    pairs = dict(_PAIR.findall(text))
    size = -1
    for key in ("size", "num_bytes", "bytes"):
        if key in pairs:
            size = _whole(pairs[key])
            break
    source, target = pairs.get("kind_src", ""), pairs.get("kind_dst", "")
    direction = _DIRECTIONS.get((_side(source), _side(target)), CopyDirection.UNKNOWN)
    pageable = -1
    if source and target:
        kinds = {source.lower(), target.lower()}
        pageable = 1 if "pageable" in kinds else 0 if "pinned" in kinds else -1
    if direction == CopyDirection.UNKNOWN:
        direction = copy_direction(pairs.get("kind", ""))
    # ROCm writes 0 for unknown sizes.
    return CopyDetails(size if 0 < size < 2**62 else -1, direction, pageable)


_SHAPE: Final = regex(r"\b(\w+)\[([\d,?]*)\]")


def parse_shapes(text: str) -> tuple[str, str]:
    """Parse `(half[4,384,4096];half[])`, the inputs of a TensorFlow op.

    Returns the shapes as JSON (`[[4,384,4096],[]]`), and the types separated by semicolons. An
    unknown dimension is -1.
    """
    inputs = _SHAPE.findall(text)
    shapes = ",".join(f"[{dimensions.replace('?', '-1')}]" for _, dimensions in inputs)
    return f"[{shapes}]", ";".join(dtype for dtype, _ in inputs)


_DIRECTION_NAMES: Final = tuple(
    (regex(pattern), direction)
    for pattern, direction in (
        (r"(?i)h(?:ost)?to ?d|h2d|HostToDevice", CopyDirection.HOST_TO_DEVICE),
        (r"(?i)d(?:evice)?to ?h|d2h|DeviceToHost", CopyDirection.DEVICE_TO_HOST),
        (r"(?i)p2p|ptop|peer", CopyDirection.PEER_TO_PEER),
        (r"(?i)d(?:evice)?to ?d|d2d|DeviceToDevice", CopyDirection.DEVICE_TO_DEVICE),
        (r"(?i)h(?:ost)?to ?h|h2h|HostToHost", CopyDirection.HOST_TO_HOST),
    )
)
_HOST, _DEVICE = "host", "device"
_DIRECTIONS: Final = {
    (_HOST, _DEVICE): CopyDirection.HOST_TO_DEVICE,
    (_DEVICE, _HOST): CopyDirection.DEVICE_TO_HOST,
    (_DEVICE, _DEVICE): CopyDirection.DEVICE_TO_DEVICE,
    (_HOST, _HOST): CopyDirection.HOST_TO_HOST,
}


def copy_direction(name: str) -> CopyDirection:
    """The direction in a name such as `MemcpyH2D`, `MEMCPYHtoD` or `hipMemcpyDtoHAsync`."""
    for pattern, direction in _DIRECTION_NAMES:
        if pattern.search(name):
            return direction
    return CopyDirection.UNKNOWN


def _side(memory: str) -> str:
    lowered = memory.lower()
    if lowered in ("pageable", "pinned", "host"):
        return _HOST
    return _DEVICE if lowered.startswith(("device", "array")) else ""


def _whole(text: str | None) -> int:
    """A number; -1 if missing; if damaged, one that is impossible, and makes sums impossible."""
    if text is None:
        return -1
    return int(text) if text.isdecimal() and len(text) < 20 else -(10**21)


def _product(text: str | None) -> int:
    if text is None:
        return -1
    product = 1
    for part in text.split(","):
        value = _whole(part)
        if value < 0:
            return -2
        product *= value
    return product


def _share(text: str | None) -> float:
    try:
        percent = float(text) if text else 0.0
    except ValueError:
        percent = 0.0
    return percent / 100 if 0 < percent <= 100 else float("nan")
