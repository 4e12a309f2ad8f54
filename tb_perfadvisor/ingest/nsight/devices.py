"""The GPUs of a recording."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tb_perfadvisor.ingest.nsight.database import Database
from tb_perfadvisor.trace import Device
from tb_perfadvisor.trace.integer_groups import distinct

_TABLE = "TARGET_INFO_GPU"
_METRICS, _METRIC_NAMES = "GPU_METRICS", "TARGET_INFO_GPU_METRICS"
_TENSOR_METRICS = ("Tensor Active [Throughput %]", "Tensor Active / FP16 Active [Throughput %]")
_GPU_BITS = 0xFF
"""Of the type of a metric's sample: which GPU it is of."""


def devices_of(database: Database, used: NDArray[np.int64]) -> tuple[Device, ...]:
    """The GPUs that ran anything; all of the machine if none did.

    Args:
        database: The export.
        used: The device of each event.
    """
    if not database.has(_TABLE, "id", "name"):
        return tuple(Device(index=index, name="", kind="gpu") for index in _indices(used))
    known = ("totalMemory", "smCount", "computeMajor", "computeMinor", "clockRate")
    present = [column for column in (*known, "memoryBandwidth") if database.has(_TABLE, column)]
    rows = database.rows(", ".join(("id", "name", *present)), _TABLE)
    indices = _indices(used)
    active = _matrix_unit_use(database)
    devices = []
    for index, name, *values in rows:
        if type(index) is not int or (indices and index not in indices):
            continue
        # The exporter writes 0 for what it does not know.
        stated = {
            column: value
            for column, value in zip(present, values, strict=True)
            if type(value) is int and value > 0
        }
        major = stated.get("computeMajor")
        devices.append(
            Device(
                index=index,
                name=name if isinstance(name, str) else "",
                kind="gpu",
                memory_bytes=stated.get("totalMemory"),
                multiprocessors=stated.get("smCount"),
                vendor="nvidia",
                compute_capability=f"{major}.{stated.get('computeMinor', 0)}" if major else "",
                clock_hz=stated.get("clockRate"),
                reported_bandwidth_bytes_per_s=stated.get("memoryBandwidth"),
                matrix_unit_use=active.get(index),
            )
        )
    return tuple(devices)


def _indices(used: NDArray[np.int64]) -> list[int]:
    found: list[int] = distinct(used[used >= 0]).tolist()
    return found


def _matrix_unit_use(database: Database) -> dict[int, float]:
    """The mean share (0-1) of time in which the tensor cores of each GPU were active."""
    if not (
        database.has(_METRIC_NAMES, "typeId", "metricId", "metricName")
        and database.has(_METRICS, "typeId", "metricId", "value")
    ):
        return {}
    chosen = [
        (kind, metric)
        for kind, metric, name in database.rows("typeId, metricId, metricName", _METRIC_NAMES)
        if name in _TENSOR_METRICS and type(kind) is int and type(metric) is int
    ]
    means = {}
    for kind, metric in chosen:
        values = database.integers(
            _METRICS, {"value": "value"}, f"typeId = {kind} AND metricId = {metric}"
        )["value"]
        if values.size:
            means[kind & _GPU_BITS] = float(np.clip(values, 0, 100).mean()) / 100
    return means
