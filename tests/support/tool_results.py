"""Writes tool results byte by byte, with field numbers from TensorFlow's .proto files."""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from tb_perfadvisor.ingest.tf_tools.reader import read_tf_tools
from tb_perfadvisor.trace import Source, Trace

Field = float | str | bytes
GENERIC, TPU = "PerGenericStepDetails", "PerTpuStepDetails"


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def message(*fields: tuple[int, Field]) -> bytes:
    """A message: an int is a varint, a float a double, text and bytes are delimited."""
    out = b""
    for number, value in fields:
        if isinstance(value, float):
            out += varint(number << 3 | 1) + struct.pack("<d", value)
        elif isinstance(value, int):
            out += varint(number << 3) + varint(value)
        else:
            data = value.encode() if isinstance(value, str) else value
            out += varint(number << 3 | 2) + varint(len(data)) + data
    return out


def any_of(name: str, *fields: tuple[int, Field]) -> bytes:
    """A google.protobuf.Any."""
    url = f"type.googleapis.com/tensorflow.profiler.{name}"
    return message((1, url), (2, message(*fields)))


def summary(average: float) -> bytes:
    return message((1, average))


# PerGenericStepDetails: 2 step time, 3 unknown, 5 output, 6 device compute, 7 device to device,
# 8 host compute, 9 host prepare, 10 host compile, 11 wait for input, 12 host to device,
# 13 device collectives.
def generic_step(number: int, **values: float) -> bytes:
    numbers = {
        "step": 2,
        "unknown": 3,
        "output": 5,
        "compute": 6,
        "device_to_device": 7,
        "host_compute": 8,
        "prepare": 9,
        "compile": 10,
        "wait_input": 11,
        "to_device": 12,
        "collectives": 13,
    }
    return any_of(GENERIC, (1, number), *((numbers[key], ms) for key, ms in values.items()))


# PerTpuStepDetails: 3 infeed, 11 and 12 all-reduce's compute and wait, 13 compute, 14 idle,
# 15 outfeed, 16 and 17 SparseCore's compute and infeed, 18 transfers of the host.
def tpu_step(number: int, **values: float) -> bytes:
    numbers = {
        "infeed": 3,
        "all_reduce": 11,
        "all_reduce_wait": 12,
        "compute": 13,
        "idle": 14,
        "outfeed": 15,
        "sparse_compute": 16,
        "sparse_infeed": 17,
        "host_transfer": 18,
    }
    return any_of(TPU, (1, number), *((numbers[key], ms) for key, ms in values.items()))


# InputPipelineAnalysisResult: 2 step time, 4 steps, 6 operators of the input pipeline,
# 8 breakdown (of it 12: collectives), 9 hardware, 12 diagnostics.
def input_pipeline(
    *steps: bytes,
    hardware: str = "GPU",
    mean: float | None = None,
    stages: Sequence[bytes] = (),
    knows_collectives: bool = False,
    errors: Sequence[str] = (),
) -> bytes:
    breakdown = ((12, summary(0.0)),) if knows_collectives else ()
    return message(
        *(() if mean is None else ((2, summary(mean)),)),
        *((4, step) for step in steps),
        *((6, stage) for stage in stages),
        (8, any_of("GenericStepTimeBreakdown", *breakdown)),
        (9, hardware),
        *(((12, message(*((3, text) for text in errors))),) if errors else ()),
    )


# InputOpDetails: 1 name, 2 count, 3 time and 5 self time in ms, 7 category.
def stage(name: str, count: int, time_ms: float, self_ms: float, category: str) -> bytes:
    return message((1, name), (2, count), (3, time_ms), (5, self_ms), (7, category))


# OverviewPage: 2 input analysis, 3 analysis (1 MXU, 2 device idle, 3 host idle, 9 and 10 compute in
# 16 and 32 bits, 12 operators on the device), 6 environment (1 hosts, 4 device, 5 cores).
def overview(
    analysis: bytes = b"",
    *,
    percent: Mapping[int, float] | None = None,
    device: str = "",
    cores: int = 0,
    hosts: int = 1,
) -> bytes:
    return message(
        (2, analysis),
        (3, message(*(percent or {}).items())),
        (6, message((1, hosts), (4, device), (5, cores))),
    )


# TfStatsDatabase: 5 without idle (1 records: 2 place, 3 type, 4 name, 5 count, 6 time and
# 8 self time in us).
def tensorflow_stats(*records: tuple[str, str, str, int, float, float]) -> bytes:
    rows = (
        message((2, place), (3, kind), (4, name), (5, count), (6, total), (8, self_us))
        for place, kind, name, count, total, self_us in records
    )
    return message((5, message(*((1, row) for row in rows))))


# KernelStatsDb: 1 reports (1 name, 2 registers, 7 total ns, 13 count).
def kernel_stats(*reports: tuple[str, int, int]) -> bytes:
    return message(
        *((1, message((1, name), (2, 32), (7, ns), (13, count))) for name, ns, count in reports)
    )


def chart_table(
    columns: Mapping[str, Sequence[Any]], properties: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """A Google chart table of columns by id."""
    rows = zip(*columns.values(), strict=True)
    return {
        "cols": [{"id": name, "label": name, "type": "number"} for name in columns],
        "rows": [{"c": [{"v": value} for value in row]} for row in rows],
        "p": dict(properties or {}),
    }


def document(value: Any) -> bytes:
    return json.dumps(value).encode()


def read(files: Mapping[str, bytes], host: str = "h") -> Trace:
    """The trace of files, given by name."""

    source = Source(path=next(iter(files)), format="tf-tools", host=host)
    return read_tf_tools({path: partial(io.BytesIO, data) for path, data in files.items()}, source)
