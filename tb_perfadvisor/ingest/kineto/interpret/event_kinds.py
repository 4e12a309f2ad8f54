"""Event kinds of Kineto's categories and names, for all versions of the format."""

from __future__ import annotations

import re
from typing import NamedTuple

from tb_perfadvisor.ingest.host_names import range_kind
from tb_perfadvisor.trace import CopyDirection, EventKind

_COMPILE_FRAME = re.compile(
    r"torch/_dynamo/convert_frame\.py\(\d+\): (?:_compile|compile_inner|_compile_inner)$"
    r"|torch/utils/cpp_extension\.py\(\d+\): (?:load|load_inline|_jit_compile)$"
    r"|triton/compiler/compiler\.py\(\d+\): compile$"
)
"""Frames that trace and compile code, or build and load an extension."""


def host_kind(category: str, name: str) -> EventKind:
    """The kind of an event on a host thread."""
    if category == "overhead":
        return EventKind.OVERHEAD
    if category == "python_function":
        return EventKind.COMPILE if _COMPILE_FRAME.search(name) else EventKind.PYTHON
    return range_kind(name, is_annotation=category == "user_annotation")


_MTIA_KINDS = {
    "dma_request": EventKind.COPY,
    "event_record": EventKind.DEVICE_SYNC,
    "event_wait": EventKind.DEVICE_SYNC,
}
_DEVICE_KINDS = {
    "gpu_memcpy": EventKind.COPY,
    "Memcpy": EventKind.COPY,
    "gpu_memset": EventKind.MEMSET,
    "Memset": EventKind.MEMSET,
    "gpu_user_annotation": EventKind.DEVICE_ANNOTATION,
    "cuda_sync": EventKind.DEVICE_SYNC,
}


def device_kind(category: str, name: str) -> EventKind:
    """The kind of an event on a device's stream; does not distinguish kernels by name."""
    if category == "mtia_ccp_events":
        return _MTIA_KINDS.get(name, EventKind.KERNEL)
    return _DEVICE_KINDS.get(category, EventKind.KERNEL)


class CopyName(NamedTuple):
    """The attributes in the name of a copy."""

    direction: CopyDirection
    pageable: int


_ENDS = re.compile(r"\((?P<source>[^()]*?) *-> *(?P<target>[^()]*)\)")
_SHORT = re.compile(r"([HDPA])[to2]+([HDPA])", re.IGNORECASE)
_DIRECTIONS = {
    "HD": CopyDirection.HOST_TO_DEVICE,
    "DH": CopyDirection.DEVICE_TO_HOST,
    "DD": CopyDirection.DEVICE_TO_DEVICE,
    "PP": CopyDirection.PEER_TO_PEER,
    "HH": CopyDirection.HOST_TO_HOST,
    # CUDA arrays are in device memory.
    "HA": CopyDirection.HOST_TO_DEVICE,
    "AH": CopyDirection.DEVICE_TO_HOST,
    "AD": CopyDirection.DEVICE_TO_DEVICE,
    "DA": CopyDirection.DEVICE_TO_DEVICE,
    "AA": CopyDirection.DEVICE_TO_DEVICE,
}


def parse_copy_name(name: str) -> CopyName:
    """Parse a name such as `Memcpy HtoD (Pageable -> Device)`."""
    ends = _ENDS.search(name)
    pageable = -1
    if ends:
        memories = {ends["source"].strip().lower(), ends["target"].strip().lower()}
        if "pageable" in memories:
            pageable = 1
        elif "pinned" in memories:
            pageable = 0
    short = _SHORT.search(name.removeprefix("Memcpy"))
    letters = "".join(short.groups()).upper() if short else ""
    return CopyName(_DIRECTIONS.get(letters, CopyDirection.UNKNOWN), pageable)
