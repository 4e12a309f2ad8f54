"""Anonymizes Kineto traces: event by event, keeping every time and number as written."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import Any, BinaryIO, Final

import msgspec

from tb_perfadvisor.errors import UnreadableProfileError
from tb_perfadvisor.ingest.anonymize.names import Names
from tb_perfadvisor.ingest.chrome.processes import has_known_process
from tb_perfadvisor.ingest.files.compression import Inflated
from tb_perfadvisor.ingest.json_trace.document import (
    Envelope,
    Text,
    decoded,
    is_present,
    open_document,
)
from tb_perfadvisor.ingest.json_trace.recognition import (
    ASCEND_PROCESS,
    ascend_error,
    foreign_error,
)
from tb_perfadvisor.ingest.kineto.decode.event_roles import Role, role_of

_ANNOTATIONS: Final = ("user_annotation", "gpu_user_annotation")
_FRAMES: Final = "python_function"
# Arguments without strings of the user. All others that are not listed below are removed.
_NUMBERS: Final = frozenset(
    {
        *("External id", "external id", "correlation", "device", "stream", "context", "queued"),
        *("Input Dims", "Input dims", "Sequence number", "Fwd thread id", "Ev Idx"),
        *("grid", "block", "registers per thread", "shared memory", "warps per SM"),
        *("blocks per SM", "est. achieved occupancy %", "bytes", "size", "Addr", "Bytes"),
        *("Device Type", "Device Id", "Total Allocated", "Total Reserved", "In msg nelems"),
        *("Out msg nelems", "Group size", "Seq", "Python id", "Python parent id"),
        *("Python module id", "Python thread", "sort_index", "memory bandwidth (GB/s)"),
    }
)
_OPERATOR_TEXTS: Final = frozenset(
    {"Input type", "Collective name", "dtype", "direction", "Process Group Ranks"}
)
_VALUES: Final = "Concrete Inputs"
_MARKER_TEXTS: Final = frozenset({"Process Group Name", "Process Group Description", "name"})
_FRAME_TEXTS: Final = frozenset({"Call stack", "Module Hierarchy"})
_DEVICE_FIELDS: Final = frozenset(
    {
        *("id", "name", "totalGlobalMem", "computeMajor", "computeMinor", "numSms"),
        *("multiProcessorCount", "maxGridHeight", "warpSize", "maxThreadsPerBlock"),
        *("maxThreadsPerMultiprocessor", "regsPerBlock", "regsPerMultiprocessor"),
        *("sharedMemPerBlock", "sharedMemPerMultiprocessor", "sharedMemPerBlockOptin"),
    }
)
_GROUP_TEXTS: Final = frozenset({"pg_name", "pg_desc"})


class _Event(msgspec.Struct, omit_defaults=True, gc=False):
    ph: Any = None
    cat: Any = None
    name: Any = None
    pid: Any = None
    tid: Any = None
    ts: msgspec.Raw = msgspec.Raw()
    dur: msgspec.Raw = msgspec.Raw()
    id: msgspec.Raw = msgspec.Raw()
    bp: msgspec.Raw = msgspec.Raw()
    s: msgspec.Raw = msgspec.Raw()
    args: dict[str, msgspec.Raw] | None = None


def anonymize_kineto(stream: BinaryIO, names: Names, *, where: str) -> Iterator[bytes]:
    """The text of the anonymized trace, piece by piece.

    The stream is gzipped or not.
    """
    text = Text(Inflated(stream, where))
    is_followed = True
    while is_followed:
        is_followed = yield from _anonymized_document(text, names, where)
        text.begin()


def _anonymized_document(text: Text, names: Names, where: str) -> Generator[bytes, None, bool]:
    """The text of the next document; returns whether another one follows."""
    document = open_document(text, _Event, where)
    if document is None:
        raise _unsupported(text.head, where)
    encode = msgspec.json.Encoder().encode
    is_kineto = False
    # Some keys precede the events, others follow them.
    header = _header(document.envelope, names)
    yield b"{" + _members(header) + b'"traceEvents":[\n'
    separator = b""
    for events in document.chunks():
        for event in events:
            if event.name == "process_name" and _text(event.args, "name") == ASCEND_PROCESS:
                raise ascend_error(where)
            is_kineto |= isinstance(event.cat, str) and role_of(event.cat) is not Role.IGNORED
            _anonymize(event, names)
        if events:
            yield separator + b",\n".join(map(encode, events))
            separator = b",\n"
    trailer = {
        key: value for key, value in _header(document.envelope, names).items() if key not in header
    }
    if not is_kineto and not {"schemaVersion", "deviceProperties"} & {*header, *trailer}:
        raise _unsupported(text.head, where)
    yield b"\n]," + _members(trailer) + b'"traceName":"anonymized.pt.trace.json"}\n'
    return document.is_followed


def _unsupported(head: bytes, where: str) -> UnreadableProfileError:
    if not has_known_process(head):
        return foreign_error(head, where)
    return UnreadableProfileError(
        "Chrome exports of TensorFlow and JAX profiles cannot be anonymized.",
        where=where,
        hint="Instead, anonymize the .xplane.pb of the same session.",
    )


def _members(values: dict[str, Any]) -> bytes:
    """The keys and values of an object, each followed by a comma."""
    return b"".join(
        msgspec.json.encode(key) + b":" + msgspec.json.encode(value) + b",\n"
        for key, value in values.items()
    )


def _anonymize(event: _Event, names: Names) -> None:
    category = event.cat if isinstance(event.cat, str) else ""
    role = role_of(category)
    if isinstance(event.name, str):
        event.name = _renamer(category, role, str(event.ph), names)(event.name)
    event.pid, event.tid = (_thread(value, names) for value in (event.pid, event.tid))
    if role is Role.IGNORED and category:
        event.cat = names.operator(category)
    if event.args:
        event.args = {
            key: value
            for key, raw in event.args.items()
            if (value := _argument(key, raw, event.name, names)) is not None
        }


def _renamer(category: str, role: Role, phase: str, names: Names) -> Callable[[str], str]:
    if category in _ANNOTATIONS:
        return names.marker
    if category == _FRAMES:
        return names.frame
    if role in (Role.DEVICE, Role.RUNTIME):
        return names.kernel if role is Role.DEVICE else names.runtime_call
    return names.operator if role is Role.OPERATOR or phase == "M" else names.marker


def _thread(value: Any, names: Names) -> Any:
    return names.marker(value) if isinstance(value, str) else value


def _argument(key: str, raw: msgspec.Raw, event: Any, names: Names) -> msgspec.Raw | None:
    """The anonymized value of an argument; None to remove it."""
    if key in _NUMBERS and b'"' not in bytes(raw):
        return raw
    if key in _NUMBERS or key in _OPERATOR_TEXTS:
        return _rewritten(raw, names.operator)
    if key == _VALUES:
        return _rewritten(raw, names.operator_values)
    if key in _MARKER_TEXTS:
        return _rewritten(raw, names.marker)
    if key in _FRAME_TEXTS:
        return _rewritten(raw, lambda text: ";".join(map(names.frame, text.split(";"))))
    return None


def _rewritten(raw: msgspec.Raw, rename: Callable[[str], str]) -> msgspec.Raw | None:
    value = decoded(raw)
    return None if value is None else msgspec.Raw(msgspec.json.encode(_mapped(value, rename)))


def _mapped(value: Any, rename: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return rename(value)
    if isinstance(value, list):
        return [_mapped(item, rename) for item in value]
    return value if isinstance(value, int | float) or value is None else None


def _header(envelope: Envelope, names: Names) -> dict[str, Any]:
    """The keys of the file besides its events."""
    header: dict[str, Any] = {
        name: value
        for name in (
            *("schemaVersion", "baseTimeNanoseconds", "record_shapes", "with_stack"),
            *("profile_memory", "cuda_runtime_version", "hip_runtime_version"),
            *("perfadvisor_synthetic", "perfadvisor_recorder", "displayTimeUnit"),
        )
        if isinstance(value := getattr(envelope, name), int | float)
        or (isinstance(value, str) and value.replace(".", "").isalnum() and len(value) < 24)
    }
    if envelope.trace_id is not None:
        header["trace_id"] = names.host(str(envelope.trace_id)).removeprefix("host-")
    if isinstance(envelope.host_name, str):
        header["host_name"] = names.host(envelope.host_name)
    for name in ("deviceProperties", "computeProperties"):
        if is_present(getattr(envelope, name)):
            header[name] = _devices(decoded(getattr(envelope, name)), names)
    if is_present(envelope.distributedInfo):
        header["distributedInfo"] = _distributed(decoded(envelope.distributedInfo), names)
    return header


def _devices(rows: Any, names: Names) -> list[dict[str, Any]]:
    return (
        [
            {
                key: names.as_written(value) if isinstance(value, str) else value
                for key, value in row.items()
                if key in _DEVICE_FIELDS and isinstance(value, int | float | str)
            }
            for row in rows
            if isinstance(row, dict)
        ]
        if isinstance(rows, list)
        else []
    )


def _distributed(info: Any, names: Names) -> dict[str, Any]:
    if not isinstance(info, dict):
        return {}
    kept: dict[str, Any] = {
        key: info[key]
        for key in ("rank", "world_size", "pg_count", "nccl_version")
        if isinstance(info.get(key), int | str)
    }
    if isinstance(info.get("backend"), str):
        kept["backend"] = names.operator(info["backend"])
    if isinstance(info.get("pg_config"), list):
        kept["pg_config"] = [
            {
                key: names.marker(str(value)) if key in _GROUP_TEXTS else value
                for key, value in group.items()
                if key in (*_GROUP_TEXTS, "pg_size", "ranks") and not isinstance(value, dict)
            }
            for group in info["pg_config"]
            if isinstance(group, dict)
        ]
    return kept


def _text(args: dict[str, msgspec.Raw] | None, key: str) -> Any:
    return decoded(args[key]) if args and key in args else None
