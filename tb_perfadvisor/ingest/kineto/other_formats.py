"""What a file is that is called like a Kineto trace and is none: one sentence each."""

from __future__ import annotations

import re

from tb_perfadvisor.errors import UnreadableProfileError

_RECORD = "Record one with torch.profiler and export_chrome_trace or tensorboard_trace_handler."


def describe_foreign(data: bytes) -> tuple[str, str]:
    """What a file is, by its first bytes, and what to do.

    Args:
        data: The inflated content, or its beginning.
    """
    head = data[:65_536].lstrip(b"\xef\xbb\xbf \t\r\n")
    for describe in (_by_magic, _by_text, _by_json):
        found = describe(head, data)
        if found is not None:
            return found
    return ("this is not a profile that Perf Advisor knows.", _RECORD)


def has_foreign_marks(data: bytes) -> bool:
    """Whether JSON has the marks of a format that is often taken for a Kineto trace."""
    return any(pattern.search(data) for pattern, _, _ in _JSON_MARKS[:-1])


def is_ascend_profile(data: bytes) -> bool:
    """Whether JSON was written by Ascend's own profiler."""
    return _ASCEND[0].search(data) is not None


def ascend_error(where: str) -> UnreadableProfileError:
    """The error for what Ascend's own profiler writes, of which the host's part looks like Kineto.

    Without the device's it would be taken for a training on the CPU.
    """
    _, message, hint = _ASCEND
    return UnreadableProfileError(message, where=where, hint=hint)


def foreign_error(data: bytes, where: str) -> UnreadableProfileError:
    """The error for a file that is no Kineto trace."""
    message, hint = describe_foreign(data)
    return UnreadableProfileError(message, where=where, hint=hint)


def _by_magic(head: bytes, data: bytes) -> tuple[str, str] | None:
    if not data:
        return "the file is empty.", "The recording or its upload failed: record it again."
    if not head:
        return "the file holds nothing but white space.", _RECORD
    for magic, name in (
        (b"\x28\xb5\x2f\xfd", "compressed with zstd"),
        (b"PK\x03\x04", "a ZIP archive"),
        (b"BZh", "compressed with bzip2"),
        (b"\xfd7zXZ", "compressed with xz"),
        (b"\x1f\x8b", "compressed more than twice"),
    ):
        if head.startswith(magic):
            return f"the file is {name}.", "Unpack it first; gzip alone is read as it is."
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
    """JSON: by the marks of formats that are often taken for a Kineto trace."""
    # The order matters: an ExecutionTrace may contain the words of the others.
    for pattern, message, hint in _JSON_MARKS:
        if pattern.search(data):
            return message, hint
    if re.match(rb"\{[^\n]*\}\s*\n\s*\{", head):
        return "these are JSON lines, not one trace.", _RECORD
    return "this JSON holds no events of the PyTorch profiler.", _RECORD


ASCEND_PROCESS = "Ascend Hardware"
"""The device's process in traces of Ascend's own profiler."""
_ASCEND = (
    re.compile(rb'"name"\s*:\s*"Ascend Hardware"'),
    "this is a trace_view.json of Ascend's own profiler, whose device events are of no category.",
    "Record with torch.profiler and tensorboard_trace_handler, on a torch_npu that writes "
    ".pt.trace.json.",
)
_JSON_MARKS = (
    _ASCEND,
    (
        re.compile(rb'"schema"\s*:\s*"\d+\.\d+\.\d+[^"]*"|"nodes"\s*:\s*\[\s*\{'),
        "this is an ExecutionTrace (graph of operators), which has no times of its own.",
        "Open the Kineto trace that was recorded beside it.",
    ),
    (
        re.compile(rb'"_start_us"\s*:|"_linked_correlation_id"\s*:'),
        "this is a dump of the profiler's events, not an exported trace.",
        "Export one with export_chrome_trace.",
    ),
    (
        re.compile(rb'"NEGOTIATE_|"CYCLE_START"'),
        "this is a Horovod timeline, which does not say what the device did.",
        _RECORD,
    ),
    (
        re.compile(rb'"/(?:host|device):[A-Z]+|"\$[\w<>.]+(?::\d+)? |"run_id"\s*:'),
        "this is the Chrome export of a TensorFlow or JAX profile.",
        "Point Perf Advisor at the file, and it is read as what it is.",
    ),
    (
        re.compile(rb"^\s*\[\s*\[\s*-?\d"),
        "this is a list of numbers, as export_memory_timeline writes it.",
        "Open the trace of the same recording.",
    ),
    (
        re.compile(rb"^\s*\[\s*-?\d"),
        "this is a list of numbers, not a trace.",
        _RECORD,
    ),
    (
        re.compile(rb'"traceEvents"|"ph"\s*:\s*"[BEXMCbens]"'),
        "these are Chrome trace events of no profiler that Perf Advisor knows.",
        "Profiles of PyTorch, TensorFlow and JAX can be read.",
    ),
)
