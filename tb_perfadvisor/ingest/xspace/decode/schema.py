"""The messages of an XSpace, for writing; `wire` reads them.

The field numbers are those of `tsl/profiler/protobuf/xplane.proto`.
"""

from __future__ import annotations

from typing import Any, Final

from msgspec import Struct

from tb_perfadvisor.ingest.protobuf_messages import (
    BYTES,
    DOUBLE,
    INT64,
    TEXT,
    UINT64,
    MessageTable,
    build_messages,
)

_MESSAGES: Final[MessageTable] = {
    "XStat": (
        ("metadata_id", 1, INT64, False),
        ("double_value", 2, DOUBLE, False),
        ("uint64_value", 3, UINT64, False),
        ("int64_value", 4, INT64, False),
        ("str_value", 5, TEXT, False),
        ("bytes_value", 6, BYTES, False),
        ("ref_value", 7, UINT64, False),
    ),
    "XEvent": (
        ("metadata_id", 1, INT64, False),
        ("offset_ps", 2, INT64, False),
        ("duration_ps", 3, INT64, False),
        ("stats", 4, "XStat", True),
        ("num_occurrences", 5, INT64, False),
    ),
    "XEventMetadata": (
        ("id", 1, INT64, False),
        ("name", 2, TEXT, False),
        ("metadata", 3, BYTES, False),
        ("display_name", 4, TEXT, False),
        ("stats", 5, "XStat", True),
        ("child_id", 6, INT64, True),
    ),
    "XStatMetadata": (
        ("id", 1, INT64, False),
        ("name", 2, TEXT, False),
        ("description", 3, TEXT, False),
    ),
    "XLine": (
        ("id", 1, INT64, False),
        ("name", 2, TEXT, False),
        ("timestamp_ns", 3, INT64, False),
        ("events", 4, "XEvent", True),
        ("duration_ps", 9, INT64, False),
        ("display_id", 10, INT64, False),
        ("display_name", 11, TEXT, False),
    ),
    "XPlane": (
        ("id", 1, INT64, False),
        ("name", 2, TEXT, False),
        ("lines", 3, "XLine", True),
        ("event_metadata", 4, {"map": "XEventMetadata"}, True),
        ("stat_metadata", 5, {"map": "XStatMetadata"}, True),
        ("stats", 6, "XStat", True),
    ),
    "XSpace": (
        ("planes", 1, "XPlane", True),
        ("errors", 2, TEXT, True),
        ("warnings", 3, TEXT, True),
        ("hostnames", 4, TEXT, True),
    ),
}
# A `oneof value` in the published format.
_STAT_VALUES: Final = {
    "double_value",
    "uint64_value",
    "int64_value",
    "str_value",
    "bytes_value",
    "ref_value",
}


class Messages(Struct, frozen=True):
    """The message classes of an XSpace."""

    XSpace: Any
    XPlane: Any
    XLine: Any
    XEvent: Any
    XStat: Any
    XEventMetadata: Any
    XStatMetadata: Any


WRITING: Final = Messages(
    **build_messages("tb_perfadvisor.xplane", _MESSAGES, is_raw=False, one_of=_STAT_VALUES)
)
