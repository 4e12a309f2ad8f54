"""Adds the attributes of kernels and copies, from their names and arguments."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tb_perfadvisor.ingest.kernels.kernel_names import classify_kernels
from tb_perfadvisor.ingest.kineto.decode.columns import KinetoColumns
from tb_perfadvisor.ingest.kineto.interpret.event_kinds import parse_copy_name
from tb_perfadvisor.trace import Assembler, CopyDirection, EventKind
from tb_perfadvisor.trace.integer_groups import unique_inverse

_MTIA_DIRECTIONS = {
    "HOST_TO_DEVICE": CopyDirection.HOST_TO_DEVICE,
    "DEVICE_TO_HOST": CopyDirection.DEVICE_TO_HOST,
    "DEVICE_TO_DEVICE": CopyDirection.DEVICE_TO_DEVICE,
}


def add_kernels(
    assembler: Assembler,
    collected: KinetoColumns,
    kind: NDArray[np.uint8],
    texts: Sequence[str],
) -> None:
    """Add attributes of compute kernels and of collectives that run as kernels."""
    device = collected.device
    rows = device["row"]
    is_kernel = np.isin(kind[rows], (EventKind.KERNEL, EventKind.COLLECTIVE))
    if not is_kernel.any():
        return
    rows = rows[is_kernel]
    names, of_row = unique_inverse(collected.events["name"][rows])
    classified = classify_kernels([texts[name] for name in names.tolist()])
    occupancy = device["occupancy_percent"][is_kernel] / 100
    assembler.add_kernels(
        rows,
        family=classified.family[of_row],
        precision=classified.precision[of_row],
        tensor_cores=classified.tensor_cores[of_row],
        grid_blocks=device["grid_blocks"][is_kernel],
        block_threads=_int32(device["block_threads"][is_kernel]),
        registers=_int32(device["registers"][is_kernel]),
        shared_memory_bytes=device["shared_memory"][is_kernel],
        occupancy_share=np.where((occupancy >= 0) & (occupancy <= 1), occupancy, np.nan),
    )


def add_copies(
    assembler: Assembler,
    collected: KinetoColumns,
    kind: NDArray[np.uint8],
    texts: Sequence[str],
) -> None:
    """Add direction, size and pageability of copies."""
    device = collected.device
    is_copy = kind[device["row"]] == EventKind.COPY
    if not is_copy.any():
        return
    rows = device["row"][is_copy]
    names, of_row = unique_inverse(collected.events["name"][rows])
    parsed = [parse_copy_name(texts[name]) for name in names.tolist()]
    direction = np.array([copy.direction for copy in parsed], dtype=np.uint8)[of_row]
    # Some devices have the direction in an argument instead of the name.
    arguments, of_argument = unique_inverse(device["direction"][is_copy])
    by_argument = np.array(
        [_MTIA_DIRECTIONS.get(texts[index], CopyDirection.UNKNOWN) for index in arguments.tolist()],
        dtype=np.uint8,
    )[of_argument]
    assembler.add_copies(
        rows,
        direction=np.where(direction == CopyDirection.UNKNOWN, by_argument, direction),
        size_bytes=device["bytes"][is_copy],
        pageable=np.array([copy.pageable for copy in parsed], dtype=np.int8)[of_row],
    )


def _int32(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Replace impossible counts of threads or registers by -1."""
    return np.where((values >= 0) & (values < 2**31), values, -1)
