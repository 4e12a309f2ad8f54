"""Copies of recordings in which every start and every duration is multiplied."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

from tb_perfadvisor.ingest.xspace.decode.messages import WRITING


def slowed(source: Path, target: Path, factor: float) -> Path:
    """Copy the Kineto traces and xplanes of a directory.

    Args:
        source: A run.
        target: Receives the copies, at the same places.
        factor: What times are multiplied by.
    """
    for path in sorted(source.rglob("*")):
        copy = target / path.relative_to(source)
        if path.name.endswith((".pt.trace.json", ".pt.trace.json.gz")):
            copy.parent.mkdir(parents=True, exist_ok=True)
            _slow_kineto(path, copy, factor)
        elif path.name.endswith(".xplane.pb"):
            copy.parent.mkdir(parents=True, exist_ok=True)
            _slow_xplane(path, copy, factor)
    return target


def _slow_kineto(path: Path, copy: Path, factor: float) -> None:
    data = path.read_bytes()
    trace = json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)
    for event in trace["traceEvents"]:
        event.update({key: event[key] * factor for key in ("ts", "dur") if key in event})
    text = json.dumps(trace).encode()
    copy.write_bytes(gzip.compress(text, 1) if path.suffix == ".gz" else text)


def _slow_xplane(path: Path, copy: Path, factor: float) -> None:
    space = WRITING.XSpace.FromString(path.read_bytes())
    for plane in space.planes:
        clocks = {
            key
            for key, stat in plane.stat_metadata.items()
            if stat.name in ("device_offset_ps", "device_duration_ps")
        }
        for line in plane.lines:
            line.timestamp_ns = round(line.timestamp_ns * factor)
            for event in line.events:
                event.offset_ps = round(event.offset_ps * factor)
                event.duration_ps = round(event.duration_ps * factor)
                for stat in event.stats:
                    if stat.metadata_id in clocks:
                        stat.int64_value = round(stat.int64_value * factor)
    copy.write_bytes(space.SerializeToString())
