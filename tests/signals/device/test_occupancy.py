from __future__ import annotations

import pytest

from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.device.occupancy import occupancy
from tb_perfadvisor.testing import TraceBuilder, run_of, us

H100 = "NVIDIA H100 80GB HBM3"  # 132 multiprocessors, 64 warps on each (compute capability 9.0)


def filled(
    blocks: int, threads: int, occupied: float | None, device: str = H100
) -> tuple[float, float]:
    builder = TraceBuilder().device(device, multiprocessors=132).step(0, 0, us(90)).launch(0, us(2))
    known = {} if occupied is None else {"occupancy_share": occupied}
    builder.kernel(
        "flash_fwd_kernel", us(5), us(85), grid_blocks=blocks, block_threads=threads, **known
    )
    found = occupancy(Signals(run_of(builder.build())))
    assert found is not None
    return float(found.waves[0]), float(found.filled_share[0])


def test_fewer_blocks_than_multiprocessors() -> None:
    waves, share = filled(33, 256, None)
    assert (waves, share) == (0.25, 0.25)


def test_a_second_wave_for_a_few_blocks() -> None:
    # 256 threads are 8 warps; an eighth of 64 warps is one block on a multiprocessor.
    waves, share = filled(165, 256, 8 / 64)
    assert waves == pytest.approx(1.25)
    assert share == pytest.approx(1.25 / 2)


def test_two_blocks_fit_on_a_multiprocessor() -> None:
    waves, share = filled(264, 256, 16 / 64)
    assert (waves, share) == (1.0, 1.0)
    assert filled(396, 256, 16 / 64) == (1.5, 0.75)


def test_a_wave_that_leaves_room_fills_them_all() -> None:
    # One and a half blocks for each multiprocessor, all of which fit at once.
    waves, share = filled(198, 256, 12 / 64)
    assert waves <= 1
    assert share == 1.0


def test_unknown_is_not_low() -> None:
    waves, share = filled(165, 256, None)
    assert waves != waves
    assert share != share
    waves, share = filled(165, 256, 8 / 64, device="A device nobody knows")
    assert share != share


def test_without_multiprocessors_or_grids_there_is_nothing() -> None:
    builder = TraceBuilder().device(H100).step(0, 0, us(90)).launch(0, us(2))
    builder.kernel("flash_fwd_kernel", us(5), us(85))
    assert occupancy(Signals(run_of(builder.build()))) is None
    builder = TraceBuilder().device(H100, multiprocessors=132).step(0, 0, us(90)).launch(0, us(2))
    builder.kernel("flash_fwd_kernel", us(5), us(85))
    found = occupancy(Signals(run_of(builder.build())))
    assert found is not None
    assert len(found.rows) == 0
