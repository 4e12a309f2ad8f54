"""The GPUs of a recording."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tb_perfadvisor.ingest.nsight.database import Database, of_type
from tb_perfadvisor.trace import Device
from tb_perfadvisor.trace.integer_groups import distinct, group_rows

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
    rows = database.rows(_TABLE, {"id": int, "name": str, **dict.fromkeys(present, int)})
    indices = _indices(used)
    active = _matrix_unit_use(database)
    devices = []
    for index, name, *values in rows:
        if index is None or (indices and index not in indices):
            continue
        # The exporter writes 0 for what it does not know.
        stated = {
            column: value
            for column, value in zip(present, values, strict=True)
            if value is not None and value > 0
        }
        major = stated.get("computeMajor")
        devices.append(
            Device(
                index=index,
                name=name or "",
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
    columns = {"typeId": int, "metricId": int, "metricName": str}
    chosen = [
        (kind, metric)
        for kind, metric, name in database.rows(_METRIC_NAMES, columns)
        if name in _TENSOR_METRICS and None not in (kind, metric)
    ]
    if not chosen or not database.has(_METRICS, "typeId", "metricId", "value"):
        return {}
    ids = ", ".join({str(metric) for _, metric in chosen})
    samples = database.integers(
        _METRICS,
        {"kind": "typeId", "metric": "metricId", "value": "value"},
        f"{of_type('metricId', int)} IN ({ids})",
    )
    first, of_sample = group_rows(samples["kind"], samples["metric"])
    sums = np.bincount(of_sample, np.clip(samples["value"], 0, 100))
    means = (sums / np.bincount(of_sample)).tolist()
    kinds, metrics = samples["kind"][first].tolist(), samples["metric"][first].tolist()
    mean_of = dict(zip(zip(kinds, metrics, strict=True), means, strict=True))
    return {
        kind & _GPU_BITS: mean_of[kind, metric] / 100
        for kind, metric in chosen
        if (kind, metric) in mean_of
    }
