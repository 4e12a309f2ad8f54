"""Tells from a file's first bytes whose trace in Chrome's format it is, if any's."""

from __future__ import annotations

import re
from typing import Literal

from msgspec import Struct

from tb_perfadvisor.ingest.chrome.processes import has_known_process
from tb_perfadvisor.ingest.files.compression import inflate_head
from tb_perfadvisor.ingest.kineto.other_formats import describe_foreign, has_foreign_marks

# Headers with the properties of eight devices and a list of process groups take some tens of
# kilobytes before the first event.
HEAD_BYTES = 262_144

_MARKS = re.compile(
    rb'"cat"\s*:\s*"(?:cpu_op|Operator|user_annotation|python_function|kernel|Kernel'
    rb"|cuda_runtime|cuda_driver|Runtime|gpu_memcpy|Memcpy|gpu_memset|Memset|gpu_user_annotation"
    rb'|mtia_ccp_events|xpu_runtime|privateuse1_runtime)"'
)
_HEADER = re.compile(rb'"schemaVersion"\s*:')
_OURS = re.compile(rb'"(?:deviceProperties|traceEvents)"\s*:|"ph"\s*:')
_EVENTS = re.compile(rb'"traceEvents"\s*:\s*\[')
# What TensorFlow and JAX call events and arguments: where the names of processes come later.
_EXPORT_HINTS = re.compile(rb'"(?:\$[\w<>.]+:\d+ |ThreadpoolListener::)|"hlo_module"\s*:')
_INFO = re.compile(rb'"distributedInfo"\s*:\s*\{([^{}]*)')
_RANK = re.compile(rb'"rank"\s*:\s*(\d{1,7})')
_WORLD_SIZE = re.compile(rb'"world_size"\s*:\s*(\d{1,7})')


class Sniffed(Struct, frozen=True):
    """What a file's beginning shows."""

    format: Literal["kineto", "chrome"] | None
    """PyTorch's, an export of TensorFlow's or JAX's, or neither."""
    reason: str = ""
    """What it is instead of a trace; empty for one."""
    rank: int | None = None
    world_size: int | None = None


def sniff_trace(data: bytes, *, claims_to_be: bool) -> Sniffed:
    """Look at the beginning of a file.

    Args:
        data: Its first bytes, compressed or not.
        claims_to_be: Whether its name is a trace's: then the benefit of the doubt is its.
    """
    head = inflate_head(data, HEAD_BYTES)
    has_header = _HEADER.search(head) and _OURS.search(head)
    is_kineto = bool(_MARKS.search(head) or has_header)
    has_hints = claims_to_be and _EXPORT_HINTS.search(head) is not None
    if not is_kineto and (has_known_process(head) or has_hints):
        return Sniffed("chrome")
    if not is_kineto and claims_to_be:
        # The first events may be of another kind, and a long head may show none at all.
        is_long = len(head) >= HEAD_BYTES and _EVENTS.search(head) is not None
        is_kineto = is_long and not has_foreign_marks(head)
    if not is_kineto:
        message, hint = describe_foreign(head)
        return Sniffed(None, f"{message} {hint}".strip())
    info = _INFO.search(head)
    block = info.group(1) if info else b""
    return Sniffed("kineto", "", _number(_RANK, block), _number(_WORLD_SIZE, block))


def _number(pattern: re.Pattern[bytes], block: bytes) -> int | None:
    found = pattern.search(block)
    return int(found.group(1)) if found else None
