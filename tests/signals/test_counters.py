"""Counters of a GPU's hardware, in a synthetic file as Kineto's source writes them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tb_perfadvisor.rules.evidence.device_work import counter_tables
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.device.device_work import CounterMean, counters_while
from tb_perfadvisor.testing import run_of
from tests.support.kineto_files import event, kernel, named, read, to_bytes

WARPS = "sm__warps_active.avg.pct_of_peak_sustained_active"
DRAM = "dram__throughput.avg.pct_of_peak_sustained_elapsed"


def sample(metric: str, ts: float, value: float, cat: str = "hardware_counters") -> dict[str, Any]:
    """As `handleCounterEvent` in libkineto/src/output_json.cpp writes it."""
    place = {"ph": "C", "cat": cat, "pid": "GPU 0 Counters", "tid": 0}
    return {**place, "name": metric, "ts": ts, "args": {"": value}}


def signals(*samples: dict[str, Any]) -> Signals:
    # Samples of 1 ms: `gemm` fills the second and third, and a little of the fourth.
    kernels = [kernel("gemm", 2_000, 2_200), kernel("fill", 4_300, 1_700)]
    work = [event("aten::mm", 900, 100), *kernels]
    return Signals(run_of(read(to_bytes([*work, *samples], deviceProperties=[{"id": 0}]))))


@pytest.mark.parametrize("category", ["hardware_counters", "gpu_pm_counter"])
def test_a_kernel_has_the_samples_that_it_fills(category: str) -> None:
    values = {1_000: 2.0, 2_000: 40.0, 3_000: 50.0, 4_000: 90.0, 5_000: 95.0, 6_000: 1.0}
    found = signals(
        *(sample(WARPS, ts, value, category) for ts, value in values.items()),
        *(sample(DRAM, ts, 10.0, category) for ts in values),
        *(sample("lts__t_sectors.sum", ts, 1e6, category) for ts in values),
    )
    gemm = np.array([named(found.trace, "gemm")], np.int32)
    assert counters_while(found, gemm) == (
        CounterMean(WARPS, "Achieved occupancy", 0.45, 2),
        CounterMean(DRAM, "Memory bandwidth", 0.1, 2),
    )
    (table,) = counter_tables(found, gemm)
    assert table.rows[0][:3] == ("Achieved occupancy", 0.45, 2)


def test_files_without_counters_say_nothing_of_them() -> None:
    found = signals()
    assert counter_tables(found, found.device.rows) == ()


def test_samples_that_are_none_are_left_out() -> None:
    odd = [
        {**sample(WARPS, 2_000, 40.0), "pid": 7},
        {**sample(WARPS, 3_000, 40.0), "args": {"": "NaN"}},
        {**sample(WARPS, 3_000, 40.0), "args": {}},
        {**sample(WARPS, 4_000, 40.0), "cat": "mtia_counters"},
    ]
    assert len(signals(*odd).trace.counters.at_ns) == 0
