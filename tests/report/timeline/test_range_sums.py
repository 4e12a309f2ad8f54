"""What takes the time of a range, worked out by hand, and equal to the analysis's own sums."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tb_perfadvisor import load
from tb_perfadvisor.report.timeline.collect_events import collect_events
from tb_perfadvisor.report.timeline.range_sums import range_of_step, sum_range
from tb_perfadvisor.report.timeline.window import TimelineEvents, describe_event, linked_events
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.testing import TraceBuilder, ms, run_of
from tests.support.range_sums import check_against_the_analysis

DEMO_LOGS = Path(__file__).resolve().parents[3] / "demo_logs"


def stored() -> TimelineEvents:
    """Two steps of 10 ms: an operator in another one launches a kernel.

    ms     0    1    2    3    4    5    6    7    8
    main   |outer 0..6                    |
             |mm 1..3 |   launch 2..2.1
    gpu                  |gemm 3..7          |
    """
    builder = TraceBuilder()
    for at in (0, 10):
        builder.step(at // 10, ms(at), ms(at + 10))
        builder.operator("outer", ms(at), ms(at + 6), frame="train.py:12 step")
        builder.operator(
            "aten::mm",
            *(ms(at + 1), ms(at + 3)),
            shapes=[[8, 128], [128, 64]],
            dtypes=["float", "float"],
            frame="model.py:7 forward",
            forward="",
            launches=False,
        )
        builder.launch(ms(at + 2), ms(at + 2.1), key=f"launch {at}")
        builder.kernel(
            "gemm",
            *(ms(at + 3), ms(at + 7)),
            launched_by=f"launch {at}",
            grid_blocks=132,
            block_threads=256,
        )
    return collect_events(Signals(run_of(builder.build())))


def by_name(table: dict[str, Any]) -> dict[str, tuple[int, int, int]]:
    return {row["name"]: (row["count"], row["own_ns"], row["device_ns"]) for row in table["rows"]}


def test_events_count_as_far_as_they_are_inside() -> None:
    sums = sum_range(stored(), ms(2), ms(5))
    # Of outer, 3 ms are inside, of which mm has one; the kernel is inside from 3 to 5 ms.
    operators = {"outer": (1, ms(2), 0), "aten::mm": (1, ms(1), ms(2))}
    assert by_name(sums["operators"]) == operators
    assert by_name(sums["kernels"]) == {"gemm": (1, 0, ms(2))}
    assert list(by_name(sums["streams"]).values()) == [(1, 0, ms(2))]
    lines = {"train.py:12 step": (1, ms(2), 0), "model.py:7 forward": (1, ms(1), ms(2))}
    assert by_name(sums["lines"]) == lines
    causes = {row["cause"]: row["total_ns"] for row in sums["causes"]}
    assert sum(causes.values()) == ms(3)
    # The inputs of mm have 32 bits.
    assert causes["compute-32"] == ms(2)


def test_both_steps_count_together() -> None:
    sums = sum_range(stored(), 0, ms(20))
    # 6 less 2 ms in each of two steps.
    assert by_name(sums["operators"]) == {"outer": (2, ms(8), 0), "aten::mm": (2, ms(4), ms(8))}
    assert by_name(sums["kernels"]) == {"gemm": (2, 0, ms(8))}


def test_the_same_part_of_another_step() -> None:
    events = stored()
    step = sum_range(events, ms(2), ms(5))["step"]
    assert step == {"number": 0, "from_part": 0.2, "to_part": 0.5}
    assert range_of_step(events, 1, 0.2, 0.5) == (ms(12), ms(15))
    # A part may begin before its step, but not before the recording.
    assert range_of_step(events, 0, -0.5, 0.5) == (0, ms(5))
    # There is no step 7: the typical one is the first of two equal ones.
    assert range_of_step(events, 7, 0.2, 0.5) == (ms(2), ms(5))


def test_what_an_event_comes_from_and_leads_to() -> None:
    events = stored()
    place = {
        name: next(at for at in range(10) if describe_event(events, at)["name"] == name)
        for name in ("outer", "aten::mm", "cudaLaunchKernel", "gemm")
    }

    def links(name: str) -> list[tuple[str, str]]:
        return [(other["link"], other["name"]) for other in linked_events(events, place[name])]

    assert links("gemm") == [("launch", "cudaLaunchKernel"), ("operator", "aten::mm")]
    assert links("cudaLaunchKernel") == [("operator", "aten::mm"), ("work", "gemm")]
    assert links("aten::mm") == [("operator", "outer"), ("work", "gemm")]
    assert links("outer") == []
    assert describe_event(events, place["aten::mm"])["arguments"] == [
        ["Shapes", "[[8,128],[128,64]]"],
        ["Types", "float, float"],
    ]
    assert describe_event(events, place["gemm"])["arguments"] == [
        ["Grid", "132 blocks"],
        ["Block", "256 threads"],
    ]


def test_a_node_of_the_backward_pass_and_its_forward_operator() -> None:
    builder = TraceBuilder().operator("aten::mm", 0, ms(1), key="forward")
    builder.operator("MmBackward0", ms(2), ms(3), forward="forward")
    events = collect_events(Signals(run_of(builder.build())))
    (forward,) = np.flatnonzero(events.start_ns == 0).tolist()
    (backward,) = np.flatnonzero(events.source >= 0).tolist()
    assert [other["link"] for other in linked_events(events, backward)] == ["forward"]
    assert [other["link"] for other in linked_events(events, forward)] == ["backward"]


@pytest.mark.parametrize(
    "name",
    [
        *("pytorch_input_slow", "pytorch_ddp_straggler", "jax_healthy"),
        *("synthetic_gpu_allreduce_8rank", "synthetic_tpu_padded"),
    ],
)
def test_sums_are_those_of_the_analysis(name: str) -> None:
    (run,) = load(DEMO_LOGS / name)
    check_against_the_analysis(Signals(run))
