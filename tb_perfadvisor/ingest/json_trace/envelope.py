"""The top level of a file in Chrome's trace format, and values that are decoded later."""

from __future__ import annotations

from typing import Any

import msgspec

ABSENT = msgspec.Raw()


class Envelope(msgspec.Struct, gc=False):
    """The top level of a file; `Raw` fields are decoded later, or not at all."""

    traceEvents: msgspec.Raw = ABSENT  # noqa: N815 - the file's spelling
    schemaVersion: Any = None  # noqa: N815
    deviceProperties: msgspec.Raw = ABSENT  # noqa: N815
    computeProperties: msgspec.Raw = ABSENT  # noqa: N815
    """The name of `deviceProperties` in the first versions."""
    distributedInfo: msgspec.Raw = ABSENT  # noqa: N815
    baseTimeNanoseconds: Any = None  # noqa: N815
    traceName: msgspec.Raw = ABSENT  # noqa: N815
    trace_id: Any = None
    host_name: Any = None
    record_shapes: Any = None
    with_stack: Any = None
    profile_memory: Any = None
    cuda_runtime_version: Any = None
    hip_runtime_version: Any = None
    perfadvisor_synthetic: Any = None
    perfadvisor_recorder: Any = None
    # Keys of other formats, which only serve to tell what the file is.
    nodes: msgspec.Raw = ABSENT
    displayTimeUnit: Any = None  # noqa: N815
    metadata: msgspec.Raw = ABSENT


def is_present(raw: msgspec.Raw | bytes) -> bool:
    """Whether a `Raw` field is in the file and not null."""
    return bytes(raw) not in (b"", b"null")


def decoded(raw: msgspec.Raw | bytes) -> Any:
    """The value of a `Raw` field; None if it is absent or not JSON."""
    if not is_present(raw):
        return None
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
