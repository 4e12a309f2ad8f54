"""Anonymizes XSpace profiles (`*.xplane.pb`): all planes, and the programs inside them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from google.protobuf.message import DecodeError

from tb_perfadvisor.errors import UnreadableProfileError
from tb_perfadvisor.ingest.anonymize.names import Names
from tb_perfadvisor.ingest.files.budget import Budget
from tb_perfadvisor.ingest.xspace.decode.messages import WRITING, decode_program
from tb_perfadvisor.ingest.xspace.decode.stats import USED_OF_KINDS
from tb_perfadvisor.patterns import regex

_STREAM: Final = regex(r"Stream #")
_HLO_PROTO: Final = "Hlo Proto"
_MEMORY_ACCESSES: Final = "memory_access_breakdown"
# Stats whose texts the runtime wrote.
_RUNTIME_TEXTS: Final = frozenset(
    {
        *("kernel_details", "memcpy_details", "memset_details", "hlo_category"),
        *("shape_with_layout", "shape", "shapes", "types", "autotune"),
        *("device_type_string", "device_vendor"),
    }
)
# Stats of planes that describe devices, versions and the recording.
_PLANE_STAT: Final = regex(
    r"\w+_version|peak_\w+|compute_cap_\w+|profile_(?:start|stop)_time|clock_rate|core_count"
    r"|memory_(?:bandwidth|size)|has_\w+|device_\w+|global_chip_id|num_hosts_dependent_job_size"
)
# Further stats of events, without text of the user.
_EVENT_STATS: Final = frozenset({"run_id", "model_flops", "raw_bytes_accessed", "occupancy_min"})
# XLA numbers each program. Runs refer to it by this number.
_PROGRAM = regex(r"(?P<name>.+)(?P<id>\(\d+\))$")


def anonymize_xspace(data: bytes, names: Names, *, where: str) -> bytes:
    """An anonymized XSpace."""
    space = WRITING.XSpace()
    try:
        space.ParseFromString(data)
    except DecodeError:
        space.Clear()
    if not space.planes:
        raise UnreadableProfileError(
            "this is not a readable XSpace profile.",
            where=where,
            hint="Copy it again from where it was written.",
        )
    space.DiscardUnknownFields()
    del space.errors[:], space.warnings[:]
    space.hostnames[:] = [names.host(name) for name in space.hostnames]
    for plane in space.planes:
        _Plane(plane, names).anonymize()
    anonymized: bytes = space.SerializeToString(deterministic=True)
    return anonymized


class _Plane:
    """Anonymizes one plane in place."""

    def __init__(self, plane: Any, names: Names) -> None:
        self._plane = plane
        self._names = names
        self._stat_name = {id_: stat.name for id_, stat in plane.stat_metadata.items()}
        self._referenced: dict[int, str] = {}

    def anonymize(self) -> None:
        plane, names = self._plane, self._names
        kernels = self._kernels()
        plane.name = names.operator(plane.name)
        for line in plane.lines:
            line.name, line.display_name = map(names.operator, (line.name, line.display_name))
            for event in line.events:
                if event.stats:
                    self._keep(event.stats, _is_event_stat)
        for id_, kind in plane.event_metadata.items():
            kind.metadata = b""
            rename = names.kernel if id_ in kernels else self._event_name
            kind.name, kind.display_name = map(rename, (kind.name, kind.display_name))
            self._keep(kind.stats, _is_event_stat)
        self._keep(plane.stats, lambda name: _PLANE_STAT.fullmatch(name) is not None)
        self._rename_stats()

    def _kernels(self) -> set[int]:
        """The kinds of events that ran on streams of a device: kernels and copies."""
        if not self._plane.name.startswith("/device:"):
            return set()
        return {
            event.metadata_id
            for line in self._plane.lines
            if _STREAM.match(line.name)
            for event in line.events
        }

    def _event_name(self, name: str) -> str:
        if name.startswith("$"):
            return f"${self._names.frame(name[1:])}"
        program = _PROGRAM.match(name)
        if program is not None:
            return f"{self._names.operator(program['name'])}{program['id']}"
        return self._names.operator(name)

    def _keep(self, stats: Any, is_kept: Callable[[str], bool]) -> None:
        """Anonymize the kept stats of a message and remove the others."""
        kept = []
        for stat in stats:
            name = self._stat_name.get(stat.metadata_id, "")
            if is_kept(name) and self._anonymize_value(stat, name):
                kept.append(stat)
        if len(kept) < len(stats):
            copies = [stat.SerializeToString() for stat in kept]
            del stats[:]
            for copy in copies:
                stats.add().MergeFromString(copy)

    def _anonymize_value(self, stat: Any, name: str) -> bool:
        """Anonymize the value of a stat; False to remove the stat."""
        value = stat.WhichOneof("value")
        if value == "str_value":
            stat.str_value = self._text(name, stat.str_value)
        elif value == "bytes_value":
            if name == _HLO_PROTO:
                stat.bytes_value = _anonymized_program(stat.bytes_value, self._names)
            return name in (_HLO_PROTO, _MEMORY_ACCESSES)
        elif value == "ref_value":
            text = self._text(name, self._stat_name.get(stat.ref_value, ""))
            self._referenced[stat.ref_value] = text
        return True

    def _text(self, stat: str, text: str) -> str:
        if stat in _RUNTIME_TEXTS or stat.endswith("_version"):
            return self._names.as_written(text)
        return self._names.frame(text) if stat == "source" else self._names.operator(text)

    def _rename_stats(self) -> None:
        """Remove the names of removed stats; replace the texts that stats refer to."""
        for id_, name in self._stat_name.items():
            entry = self._plane.stat_metadata[id_]
            entry.description = ""
            if id_ in self._referenced:
                entry.name = self._referenced[id_]
            elif not (_is_event_stat(name) or _PLANE_STAT.fullmatch(name)):
                del self._plane.stat_metadata[id_]


def _is_event_stat(name: str) -> bool:
    return name in USED_OF_KINDS or name in _EVENT_STATS


def _anonymized_program(proto: bytes, names: Names) -> bytes:
    """A program with the fields that readers use, and without the user's names."""
    program = decode_program(proto, Budget("", len(proto)))
    program.DiscardUnknownFields()
    files = program.hlo_module.stack_frame_index.file_names
    files[:] = [_bytes(names.frame, file) for file in files]
    for computation in program.hlo_module.computations:
        for instruction in computation.instructions:
            instruction.name = _bytes(names.operator, instruction.name)
            instruction.custom_call_target = _bytes(names.operator, instruction.custom_call_target)
            metadata = instruction.metadata
            if metadata.op_name:
                metadata.op_name = _bytes(names.operator, metadata.op_name)
            if metadata.source_file:
                metadata.source_file = _bytes(names.frame, metadata.source_file)
    anonymized: bytes = program.SerializeToString(deterministic=True)
    return anonymized


def _bytes(rename: Callable[[str], str], text: bytes) -> bytes:
    return rename(text.decode("utf-8", "replace")).encode()
