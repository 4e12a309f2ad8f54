"""Recognizes traces of Kineto, and says what a file is that has the name of one but is none."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tb_perfadvisor.errors import UnreadableProfileError
from tb_perfadvisor.ingest.files.containers import GZIP_MAGIC, container_of
from tb_perfadvisor.patterns import regex

_RECORD = "Record one with torch.profiler and export_chrome_trace or tensorboard_trace_handler."

# A byte-order mark, or an opening bracket of two bytes.
_UTF_16 = regex(rb"\xff\xfe|\xfe\xff|[\[{]\0|\0[\[{]")
_SQLITE = b"SQLite format 3\0"
_PICKLE = regex(rb"\x80[\x02-\x05]")
_UNKNOWN_EVENTS = "these are Chrome trace events of an unknown profiler."
_MOST_CATEGORIES = 3

_CATEGORIES = regex(
    rb'"cat"\s*:\s*"(?:cpu_op|Operator|user_annotation|python_function|kernel|Kernel'
    rb"|cuda_runtime|cuda_driver|Runtime|gpu_memcpy|Memcpy|gpu_memset|Memset|gpu_user_annotation"
    rb'|mtia_ccp_events|xpu_runtime|privateuse1_runtime)"'
    rb'|"pid"\s*:\s*"(?:CPU|CUDA) functions"'
)
_HEADER = regex(rb'"schemaVersion"\s*:')
_KEYS = regex(rb'"(?:deviceProperties|traceEvents)"\s*:|"ph"\s*:')


def has_kineto_marks(head: bytes) -> bool:
    """Whether the beginning of a file has categories or the header that only Kineto writes."""
    has_header = _HEADER.search(head) is not None and _KEYS.search(head) is not None
    return has_header or _CATEGORIES.search(head) is not None


def describe_foreign(data: bytes) -> tuple[str, str]:
    """What a file is, and what to do.

    `data` is the inflated content, or its beginning.
    """
    head = data[:65_536].lstrip(b"\xef\xbb\xbf \t\r\n")
    for describe in (_by_magic, _by_text, _by_json):
        description = describe(head, data)
        if description is not None:
            return description
    return ("this is not a profile that Perf Advisor can read.", _RECORD)


def has_foreign_marks(data: bytes) -> bool:
    """Whether JSON has keys of a format that is often mistaken for a Kineto trace."""
    return any(pattern.search(data) for pattern, _, _ in _JSON_MARKS[:-1])


def is_ascend_profile(data: bytes) -> bool:
    """Whether JSON was written by Ascend's own profiler."""
    # Traces have thousands of names, so look for this one before the pattern around it.
    return ASCEND_PROCESS.encode() in data and _ASCEND[0].search(data) is not None


def ascend_error(where: str) -> UnreadableProfileError:
    """The error for traces of Ascend's profiler.

    Their host events look like Kineto's, so the trace would look like training on the CPU.
    """
    _, message, hint = _ASCEND
    return UnreadableProfileError(message, where=where, hint=hint)


def foreign_events_error(
    data: bytes, categories: Sequence[str], where: str
) -> UnreadableProfileError:
    """The error for a trace of which no event has a category that Kineto writes.

    `data` is its beginning, and `categories` are those that its events have.
    """
    message, hint = describe_foreign(data)
    if message == _UNKNOWN_EVENTS and categories:
        shown = ", ".join(f"'{category}'" for category in sorted(categories)[:_MOST_CATEGORIES])
        message = f"{message[:-1]}: their categories are {shown}."
    return UnreadableProfileError(message, where=where, hint=hint)


def foreign_error(data: bytes, where: str) -> UnreadableProfileError:
    """The error for a file that is not a Kineto trace."""
    message, hint = describe_foreign(data)
    return UnreadableProfileError(message, where=where, hint=hint)


def _by_magic(head: bytes, data: bytes) -> tuple[str, str] | None:
    if not data:
        return "the file is empty.", "The recording or its upload failed: record it again."
    if not head:
        return "the file contains only white space.", _RECORD
    container = container_of(data)
    if data.startswith(GZIP_MAGIC):
        container = "compressed more than twice"
    if container is not None:
        return f"the file is {container}.", "Unpack it first; only gzip is read directly."
    if _UTF_16.match(data):
        return (
            "this is text in UTF-16.",
            "Convert it first: `iconv -f UTF-16 -t UTF-8 FILE > trace.json`.",
        )
    if head.startswith(_SQLITE):
        return "this is an SQLite database, not a trace.", _RECORD
    if _PICKLE.match(head):
        return (
            "this is a pickle, but no memory snapshot of PyTorch.",
            "Write one with torch.cuda.memory._dump_snapshot.",
        )
    if head.startswith(b"version https://git-lfs"):
        return "this is a git-LFS pointer, not the trace itself.", "Run `git lfs pull`."
    return None


def _by_text(head: bytes, data: bytes) -> tuple[str, str] | None:
    start = head[:200].lower()
    if start.startswith((b"<!doctype", b"<html", b"<?xml")) or b"<html" in start:
        return (
            "this is a web page, probably the error page of a failed download.",
            "Download the trace again.",
        )
    if head[:1] not in (b"{", b"["):
        kind = "binary data" if b"\x00" in head[:4096] else "text"
        return f"this is {kind}, not a trace in JSON.", _RECORD
    return None


def _by_json(head: bytes, data: bytes) -> tuple[str, str] | None:
    """Describe JSON by the keys of formats that are often mistaken for a Kineto trace."""
    # The order matters: an ExecutionTrace may contain the words of the others.
    for pattern, message, hint in _JSON_MARKS:
        if pattern.search(data):
            return message, hint
    if re.match(rb"\{[^\n]*\}\s*\n\s*\{", head):
        return "these are JSON lines, not one trace.", _RECORD
    return "this JSON has no events of the PyTorch profiler.", _RECORD


ASCEND_PROCESS = "Ascend Hardware"
"""The device's process in traces of Ascend's own profiler."""
_ASCEND = (
    regex(rb'"name"\s*:\s*"Ascend Hardware"'),
    "this is a trace_view.json of Ascend's profiler, whose device events have no category.",
    "Record with torch.profiler and tensorboard_trace_handler, on a torch_npu that writes "
    ".pt.trace.json.",
)
_JSON_MARKS = (
    _ASCEND,
    (
        regex(rb'"schema"\s*:\s*"\d+\.\d+\.\d[^"]*"|"nodes"\s*:\s*\[\s*\{'),
        "this is an ExecutionTrace (a graph of operators), which has no times.",
        "Open the Kineto trace of the same recording.",
    ),
    (
        regex(rb'"_start_us"\s*:|"_linked_correlation_id"\s*:'),
        "this is a dump of the profiler's events, not an exported trace.",
        "Export one with export_chrome_trace.",
    ),
    (
        regex(rb'"device_traces"\s*:\s*\[|"segment_type"\s*:'),
        "this is a memory snapshot of PyTorch as JSON.",
        "Write a pickle with torch.cuda.memory._dump_snapshot.",
    ),
    (
        regex(rb'"NEGOTIATE_|"CYCLE_START"'),
        "this is a Horovod timeline, which has no device events.",
        _RECORD,
    ),
    (
        regex(rb'"/(?:host|device):[A-Z]+|"\$[\w<>.]+(?::\d+)? |"run_id"\s*:'),
        "this is the Chrome export of a TensorFlow or JAX profile.",
        "Pass the path of the file itself to Perf Advisor.",
    ),
    (
        regex(rb"^\s*\[\s*\[\s*-?\d"),
        "this is a list of numbers from export_memory_timeline.",
        "Open the trace of the same recording.",
    ),
    (
        regex(rb"^\s*\[\s*-?\d"),
        "this is a list of numbers, not a trace.",
        _RECORD,
    ),
    (
        regex(rb'"traceEvents"|"ph"\s*:\s*"[BEXMCbens]"'),
        _UNKNOWN_EVENTS,
        "Perf Advisor reads profiles of PyTorch, TensorFlow and JAX.",
    ),
)
