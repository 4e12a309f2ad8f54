"""The links that collectives use."""

from __future__ import annotations

import pytest

from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.ranks.collective_costs import link_of_group
from tb_perfadvisor.testing import draw, run_of
from tb_perfadvisor.testing.symbols import collective

TRACE = """
    cell 1ms
    step   |..........|
    main   |LSSSSSSSSS|
    tpu 0  |XXXXXXNNNN|
"""


@pytest.mark.parametrize(
    ("device", "ranks", "neighbors", "gigabytes"),
    [
        # A v4 has six links of 50 GB/s. A group along one axis of the mesh uses two of them.
        ("TPU v4", 8, 2, 100),
        ("TPU v4", 64, 4, 200),
        ("TPU v4", 512, 6, 300),
        # Two chips share one link, and so do groups along an axis of two.
        ("TPU v4", 2, 1, 50),
        ("TPU v4", 2, -1, 50),
        # Four axes of the program cannot use more than the two of the torus.
        ("TPU v5e", 256, 8, 200),
        # Without a mesh, a ring.
        ("TPU v6e", 16, -1, 200),
    ],
)
def test_a_torus_has_two_links_for_each_axis(
    device: str, ranks: int, neighbors: int, gigabytes: float
) -> None:
    symbol = collective("all-reduce.1", size_bytes=1 << 20, group_size=ranks, neighbors=neighbors)
    trace = draw(TRACE, legend={"N": symbol}, device=device)
    assert link_of_group(Signals(run_of(trace))).tolist() == [pytest.approx(gigabytes * 1e9)]
