from __future__ import annotations

import pytest

from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.device.device_work import occupancy
from tb_perfadvisor.testing import TraceBuilder, run_of, us

H100 = "NVIDIA H100 80GB HBM3"  # 132 multiprocessors, 64 warps on each (compute capability 9.0)


def waves_and_share(
    blocks: int, threads: int, occupancy_share: float | None, device: str = H100
) -> tuple[float, float]:
    builder = TraceBuilder().device(device, multiprocessors=132).step(0, 0, us(90)).launch(0, us(2))
    recorded = {} if occupancy_share is None else {"occupancy_share": occupancy_share}
    builder.kernel(
        "flash_fwd_kernel", us(5), us(85), grid_blocks=blocks, block_threads=threads, **recorded
    )
    kernels = occupancy(Signals(run_of(builder.build())))
    assert kernels is not None
    return float(kernels.waves[0]), float(kernels.filled_share[0])


def test_fewer_blocks_than_multiprocessors_fill_a_part_of_the_device() -> None:
    waves, share = waves_and_share(33, 256, None)
    assert (waves, share) == (0.25, 0.25)


def test_a_few_blocks_need_a_second_wave() -> None:
    # 256 threads are 8 warps. An occupancy of 8 of 64 warps is one block per multiprocessor.
    waves, share = waves_and_share(165, 256, 8 / 64)
    assert waves == pytest.approx(1.25)
    assert share == pytest.approx(1.25 / 2)


def test_two_blocks_may_fit_on_a_multiprocessor() -> None:
    waves, share = waves_and_share(264, 256, 16 / 64)
    assert (waves, share) == (1.0, 1.0)
    assert waves_and_share(396, 256, 16 / 64) == (1.5, 0.75)


def test_a_wave_with_room_to_spare_fills_all_multiprocessors() -> None:
    # One and a half blocks per multiprocessor, all of which fit at once.
    waves, share = waves_and_share(198, 256, 12 / 64)
    assert waves <= 1
    assert share == 1.0


def test_unknown_occupancy_is_nan() -> None:
    waves, share = waves_and_share(165, 256, None)
    assert waves != waves
    assert share != share
    waves, share = waves_and_share(165, 256, 8 / 64, device="A device nobody knows")
    assert share != share


def test_without_multiprocessors_or_grids_no_kernel_is_judged() -> None:
    builder = TraceBuilder().device("A device nobody knows").step(0, 0, us(90)).launch(0, us(2))
    builder.kernel("flash_fwd_kernel", us(5), us(85))
    assert occupancy(Signals(run_of(builder.build()))) is None
    builder = TraceBuilder().device(H100, multiprocessors=132).step(0, 0, us(90)).launch(0, us(2))
    builder.kernel("flash_fwd_kernel", us(5), us(85))
    kernels = occupancy(Signals(run_of(builder.build())))
    assert kernels is not None
    assert len(kernels.rows) == 0
