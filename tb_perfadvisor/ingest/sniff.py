"""Tells from a file's first bytes whether it is a trace of the PyTorch profiler."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tb_perfadvisor.ingest.compression import inflate_head
from tb_perfadvisor.ingest.kineto.foreign import describe_foreign, has_foreign_marks

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
_INFO = re.compile(rb'"distributedInfo"\s*:\s*\{([^{}]*)')
_RANK = re.compile(rb'"rank"\s*:\s*(\d{1,7})')
_WORLD_SIZE = re.compile(rb'"world_size"\s*:\s*(\d{1,7})')


@dataclass(frozen=True, slots=True)
class Sniffed:
    """What a file's beginning shows."""

    is_kineto: bool
    reason: str
    """What it is instead; empty for a Kineto trace."""
    rank: int | None = None
    world_size: int | None = None


def sniff_kineto(data: bytes, *, claims_to_be: bool) -> Sniffed:
    """Look at the beginning of a file.

    Args:
        data: Its first bytes, compressed or not.
        claims_to_be: Whether its name is a trace's: then the benefit of the doubt is its.
    """
    head = inflate_head(data, HEAD_BYTES)
    has_header = _HEADER.search(head) and _OURS.search(head)
    is_kineto = bool(_MARKS.search(head) or has_header)
    if not is_kineto and claims_to_be:
        # The first events may be of another kind, and a long head may show none at all.
        is_long = len(head) >= HEAD_BYTES and _EVENTS.search(head) is not None
        is_kineto = is_long and not has_foreign_marks(head)
    if not is_kineto:
        message, hint = describe_foreign(head)
        return Sniffed(False, f"{message} {hint}".strip())
    info = _INFO.search(head)
    block = info.group(1) if info else b""
    return Sniffed(True, "", _number(_RANK, block), _number(_WORLD_SIZE, block))


def _number(pattern: re.Pattern[bytes], block: bytes) -> int | None:
    found = pattern.search(block)
    return int(found.group(1)) if found else None
