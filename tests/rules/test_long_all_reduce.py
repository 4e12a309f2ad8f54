from __future__ import annotations

from typing import Any

import pytest

from tb_perfadvisor.engine.analyze import run_rule
from tb_perfadvisor.rules.communication.transfers import LongAllReduce
from tb_perfadvisor.rules.finding import Table
from tb_perfadvisor.signals import Options, Signals
from tb_perfadvisor.signals.steps.step_variation import gradient_bytes
from tb_perfadvisor.testing import TraceBuilder, check_rule, draw, find, ms, run_of, us
from tb_perfadvisor.testing.symbols import collective, host, operator
from tb_perfadvisor.trace import Run, Trace

SLOW = """
    cell 1ms
    step   |..........|..........|
    main   |o'SSSSSSSS|o'SSSSSSSS|
    gpu 7  |KKKKK.....|KKKKK.....|
    gpu 13 |.....NNNNN|.....NNNNN|
"""
FIXED = """
    cell 1ms
    step   |......|......|
    main   |o'SSSS|o'SSSS|
    gpu 7  |KKKKK.|KKKKK.|
    gpu 13 |.....N|.....N|
"""
# Two ranks send 2 (n-1)/n = 1 times 100 MB at 100 GB/s: 1 ms, plus 30 µs of latency.
LINK = Options(link_bandwidth_bytes_per_s=100e9)


def _ranks(text: str, **size: Any) -> Run:
    name = size.pop("name", "ncclDevKernel_AllReduce_Sum_f32_RING_LL")
    known = {"size_bytes": 100_000_000, "dtype": "float", "group_size": 2}
    symbol = collective(name, **(known | size))
    return run_of(
        *(
            draw(text, legend={"N": symbol}, rank=rank, world_size=2, backend="nccl")
            for rank in (0, 1)
        )
    )


def test_saves_what_the_fix_saves() -> None:
    checked = check_rule(
        LongAllReduce,
        slow=_ranks(SLOW),
        fixed=_ranks(FIXED),
        saves="4ms",
        tolerance=0.01,
        scales=False,  # bytes and bandwidth stay what they are
        options=LINK,
    )
    assert checked.expected_ns == 5_000_000 - 1_030_000


def test_bytes_per_step_are_those_of_whole_steps() -> None:
    """The device is a step behind: in the window, one of two all-reduces is of an unknown size."""
    builder = TraceBuilder(rank=0, world_size=2, backend="nccl")
    builder.collective("ncclDevKernel_Generic", ms(1), ms(6), operation="unknown", launched_by="")
    for step in range(2):
        at = ms(10 * step)
        builder.step(step, at, at + ms(10)).launch(at, at + us(9), key=f"{step}")
        builder.collective(
            "ncclDevKernel_Generic",
            at + ms(11),
            at + ms(16),
            launched_by=f"{step}",
            size_bytes=100_000_000,
            dtype="BFloat16",
            group_size=2,
        )
    (finding,) = find(LongAllReduce, run_of(builder.build()), options=LINK) or ()
    # 100 MB are 95.4 MiB, not half of that.
    assert finding.summary.startswith("The all-reduce of 95.4 MiB per step takes 5.00 ms")


@pytest.mark.parametrize(("dtype", "is_advised"), [("Float", True), ("BFloat16", False)])
def test_only_wide_gradients_are_made_narrower(dtype: str, is_advised: bool) -> None:
    gradient = operator("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad")
    name = "ncclDevKernel_AllReduce_RING_LL"
    size = {"size_bytes": 100_000_000, "dtype": dtype, "group_size": 2}
    legend = {
        "o": gradient,
        "N": collective(name, **size),
        "S": host("DistributedDataParallel.forward"),
    }
    trace = draw(SLOW, legend=legend, rank=0, world_size=2, backend="nccl")
    outcome = run_rule(LongAllReduce(), Signals(run_of(trace), options=LINK))
    (finding,) = outcome.findings
    snippets = " ".join(remedy.snippet for remedy in finding.remedies)
    assert ("bf16_compress_hook" in snippets) is is_advised
    assert "NCCL_DEBUG" in snippets


def test_without_all_ranks_the_excess_may_be_waiting() -> None:
    run = run_of(_ranks(SLOW).traces[0])
    (finding,) = find(LongAllReduce, run, options=LINK) or ()
    assert finding.saving is not None
    assert (finding.saving.low_ns, finding.saving.expected_ns) == (0, 0)
    assert finding.saving.high_ns > 0
    assert finding.saving.is_unknown


def test_parameter_count_replaces_missing_sizes() -> None:
    # 25 million parameters of 4 bytes are the same 100 MB per step.
    options = Options(parameters=25_000_000, link_bandwidth_bytes_per_s=100e9)
    unsized = _ranks(SLOW, size_bytes=-1)
    assert find(LongAllReduce, unsized, options=LINK) is None
    (finding,) = find(LongAllReduce, unsized, options=options) or ()
    assert finding.saving is not None
    assert finding.saving.expected_ns == 2 * (5_000_000 - 1_030_000)


def test_kernel_name_tells_the_size_of_a_parameter() -> None:
    # 50 million parameters of 2 bytes are the same 100 MB.
    name = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"
    options = Options(parameters=50_000_000, link_bandwidth_bytes_per_s=100e9)
    run = _ranks(SLOW, name=name, dtype="BFloat16", size_bytes=-1)
    (finding,) = find(LongAllReduce, run, options=options) or ()
    assert finding.saving is not None
    assert finding.saving.expected_ns == 2 * (5_000_000 - 1_030_000)


def test_accumulated_gradients_replace_missing_sizes() -> None:
    """Two gradients with 1 and 24 million elements of 4 bytes: 100 MB per step."""
    gradient = "torch::autograd::AccumulateGrad"

    def rank(number: int) -> Trace:
        builder = TraceBuilder(rank=number, world_size=2, backend="nccl")
        for step in range(2):
            at = ms(10 * step)
            builder.step(step, at, at + ms(10))
            builder.operator("aten::mm", at, at + us(10))
            for index, shape in enumerate(([1000, 1000], [24_000_000])):
                begin = at + us(20 + 10 * index)
                builder.operator(gradient, begin, begin + us(9), shapes=[shape], dtypes=["float"])
            builder.kernel("ampere_sgemm_128x64_nn", at, at + ms(5))
            builder.collective("custom_all_reduce", at + ms(5), at + ms(10), group_size=2)
        return builder.build()

    run = run_of(rank(0), rank(1))
    assert gradient_bytes(Signals(run)) == 100_000_000
    (finding,) = find(LongAllReduce, run, options=LINK) or ()
    assert "95.4 MiB of gradients" in finding.summary
    assert finding.saving is not None
    assert finding.saving.expected_ns == 2 * (5_000_000 - 1_030_000)


def test_a_tree_sends_all_bytes_twice() -> None:
    # With 8 ranks, a ring sends 2 x 7/8 of 100 MB at 100 GB/s, 1.75 ms, in 14 hops of 3.4 µs. A
    # tree sends it all twice, 2 ms, in 2 x 3 hops, which take less than the 30 µs of a launch.
    def expected(name: str) -> float:
        run = _ranks(SLOW, name=name, group_size=8)
        options = Options(link_bandwidth_bytes_per_s=100e9)
        (finding,) = find(LongAllReduce, run, options=options, settings={"minimum_ratio": 1}) or ()
        table = finding.evidence[0]
        assert isinstance(table, Table)
        keys = [column.key for column in table.columns]
        return float(table.rows[0][keys.index("expected_ns")] or 0)

    assert expected("ncclDevKernel_AllReduce_Sum_f32_RING_LL") == 1_750_000 + 14 * 3_400
    assert expected("ncclDevKernel_AllReduce_Sum_f32_TREE_LL") == 2_000_000 + 30_000


def test_not_applicable_without_a_bandwidth() -> None:
    assert find(LongAllReduce, _ranks(SLOW)) is None


def test_fires_only_above_the_ratio() -> None:
    # 5 ms instead of 1.03 ms: 4.85 times.
    above, below = {"minimum_ratio": 4.9}, {"minimum_ratio": 4.8}
    assert find(LongAllReduce, _ranks(SLOW), options=LINK, settings=above) == ()
    assert len(find(LongAllReduce, _ranks(SLOW), options=LINK, settings=below) or ()) == 1


def test_fires_only_above_the_share() -> None:
    # The excess is 3.97 of 10 ms.
    above, below = {"minimum_share": 0.40}, {"minimum_share": 0.39}
    assert find(LongAllReduce, _ranks(SLOW), options=LINK, settings=above) == ()
    assert len(find(LongAllReduce, _ranks(SLOW), options=LINK, settings=below) or ()) == 1
