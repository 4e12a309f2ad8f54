from __future__ import annotations

import pytest

from tb_perfadvisor.engine.analyze import analyze_run
from tb_perfadvisor.engine.config import Config
from tb_perfadvisor.report.build import build_report
from tb_perfadvisor.signals.core.device import (
    existing_devices,
    shows_device_use,
    unused_devices,
    used_devices,
)
from tb_perfadvisor.testing import TraceBuilder, ms, run_of
from tb_perfadvisor.testing.builder import Builder
from tb_perfadvisor.trace import CopyDirection, Trace

GIB = 2**30


def listed() -> Builder:
    """Three devices of a machine and a placeholder without a size."""
    builder = TraceBuilder("jax")
    for _ in range(3):
        builder.device("NVIDIA H100 80GB HBM3", memory_bytes=80 * GIB)
    return builder.device("", kind="other")


def visible_and_used(trace: Trace) -> tuple[int, int]:
    report = build_report(analyze_run(run_of(trace), Config()), Config())
    device = report.workers[0].device
    assert device is not None
    return device.visible, device.used


def test_placeholders_do_not_exist_and_copies_are_a_sign_of_use() -> None:
    builder = listed().kernel("gemm", ms(0), ms(5), device=0)
    trace = builder.copy(CopyDirection.HOST_TO_DEVICE, ms(0), ms(1), device=2).build()
    assert existing_devices(trace) == (0, 1, 2)
    assert used_devices(trace) == (0,)
    # Device 2 is not seen to compute, but not seen to be unused either.
    assert [device.index for device in unused_devices(trace)] == [1]
    assert visible_and_used(trace) == (3, 1)


def test_a_device_with_events_exists_even_if_it_is_not_listed() -> None:
    builder = listed().kernel("gemm", ms(0), ms(5), device=0)
    trace = builder.kernel("gemm", ms(0), ms(5), device=7).build()
    assert existing_devices(trace) == (0, 1, 2, 7)
    assert visible_and_used(trace) == (4, 2)


def test_a_program_that_only_copies_uses_its_device() -> None:
    trace = listed().copy(CopyDirection.HOST_TO_DEVICE, ms(0), ms(1), device=1).build()
    assert used_devices(trace) == (1,)
    assert visible_and_used(trace) == (3, 1)


@pytest.mark.parametrize(
    ("name", "is_used"),
    [
        ("aten::cudnn_convolution", True),
        ("aten::miopen_batch_norm", True),
        # A recurrent layer on the CPU asks whether cuDNN could run it.
        ("aten::cudnn_is_acceptable", False),
    ],
)
def test_operators_that_only_devices_have(name: str, is_used: bool) -> None:
    builder = TraceBuilder()
    builder.operator(name, 0, 1_000)
    assert shows_device_use(builder.build()) == is_used
