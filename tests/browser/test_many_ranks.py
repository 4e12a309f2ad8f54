"""A run of many ranks: the page stays small however many there are."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tb_perfadvisor.testing import TraceBuilder, ms
from tests.support.browser import Visitor, capture_of, link, read, report_at, text_of
from tests.support.writers import write_kineto

RANKS, LATE = 64, 41
NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
# A few screens. Heat maps have two elements per rank; nothing else may grow with the ranks.
MOST_ELEMENTS = 5_000


def trace(rank: int) -> bytes:
    """Three steps in which one rank is 6 ms late to its all-reduce."""
    builder = TraceBuilder(rank=rank, world_size=RANKS, backend="nccl", host=f"host{rank // 8}")
    builder.device("NVIDIA H100 80GB HBM3")
    compute_ms = 14 if rank == LATE else 8
    for number in range(3):
        begin = ms(20) * number
        builder.step(number, begin, begin + ms(20))
        builder.operator("aten::mm", begin, begin + ms(1), key=f"{number}")
        end = begin + ms(1 + compute_ms)
        builder.kernel("sgemm_128x128", begin + ms(1), end, launched_by=f"{number}")
        builder.operator("c10d::allreduce_", begin + ms(1), begin + ms(2), key=f"c{number}")
        builder.collective(
            NCCL, end, begin + ms(17), size_bytes=1 << 20, group_size=RANKS,
            group="default", launched_by=f"c{number}",
        )  # fmt: skip
    return write_kineto(builder.build())


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    run = tmp_path / "logs" / "many"
    run.mkdir(parents=True)
    for rank in range(RANKS):
        (run / f"rank{rank}.1795234073764326979.pt.trace.json").write_bytes(trace(rank))
    return tmp_path / "logs"


def test_straggler_among_64_ranks_is_shown_on_a_small_page(
    board: Callable[..., str], visitor: Visitor, logs: Path
) -> None:
    server = board("--logdir", str(logs))
    capture, page, tab = capture_of(server, "many")["id"], visitor.page, visitor.tab()
    report = report_at(server, capture)
    assert len(report["workers"]) == RANKS
    # 63 ranks wait 6 ms for rank 41.
    view = read(server, f"captures/{capture}/views/ranks")
    assert view["late"] == [LATE]
    for name in ("report", "ranks", "about"):
        visitor.open(f"{server}/{link(capture, view=name)}")
        tab.get_by_role("heading", level=1).first.wait_for()
        if name == "ranks":
            heading = f"Other ranks wait 6.00 ms per step for rank {LATE}"
            tab.get_by_role("heading", level=1, name=heading).wait_for()
            first = tab.get_by_role("group", name="All ranks").get_by_role("row").nth(1)
            assert re.match(rf"rank {LATE}\b.*6\.00 ms", text_of(first), re.DOTALL)
        page.wait_for_timeout(500)
        assert tab.locator("*").count() < MOST_ELEMENTS, name
