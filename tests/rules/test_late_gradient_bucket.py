from __future__ import annotations

import pytest

from tb_perfadvisor.rules.communication.overlap import LateGradientBucket
from tb_perfadvisor.signals import Options
from tb_perfadvisor.testing import check_rule, draw, find, run_of
from tb_perfadvisor.testing.symbols import Symbol, collective, host, operator
from tb_perfadvisor.trace import Run, Trace

SLOW = """
    cell 1ms
    step   |............|............|
    main   |o'SSSSSSSSSS|o'SSSSSSSSSS|
    gpu 7  |KKKKKKKK....|KKKKKKKK....|
    gpu 13 |...NNNN.NNNN|...NNNN.NNNN|
"""
FIXED = """
    cell 1ms
    step   |..........|..........|
    main   |o'SSSSSSSS|o'SSSSSSSS|
    gpu 7  |KKKKKKKK..|KKKKKKKK..|
    gpu 13 |..NNNNNNNN|..NNNNNNNN|
"""
GRADIENT = operator("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad")


def one_rank(text: str, rank: int = 0, **legend: Symbol) -> Trace:
    symbols = {"o": GRADIENT, "f": host("DistributedDataParallel.forward"), **legend}
    # An annotation on a thread of its own, so that waiting for the device stays waiting.
    steps = next(line for line in text.splitlines() if line.strip().startswith("step"))
    forward = steps.replace("step  ", "forward").replace("|.", "|f")
    return draw(f"{text}{forward}\n", legend=symbols, rank=rank, world_size=2, backend="nccl")


def two_ranks(text: str) -> Run:
    return run_of(*(one_rank(text, rank) for rank in (0, 1)))


def test_saves_what_the_fix_saves() -> None:
    # 4 ms are exposed: at most 3.6 ms can go, and half of that is expected.
    checked = check_rule(
        LateGradientBucket, slow=two_ranks(SLOW), fixed=two_ranks(FIXED), saves="2ms", exactly=False
    )
    (finding,) = checked.findings
    assert finding.saving is not None
    assert finding.saving.high_ns == 2 * 3_600_000


def test_passes_if_other_all_reduces_are_exposed_too() -> None:
    exposed = """
        cell 1ms
        step   |............|............|
        main   |o'SSSSSSSSSS|o'SSSSSSSSSS|
        gpu 7  |KKK.........|KKK.........|
        gpu 13 |...NNNN.N.NN|...NNNN.N.NN|
    """
    assert find(LateGradientBucket, two_ranks(exposed)) == ()


def test_a_single_all_reduce_per_step_passes() -> None:
    single = SLOW.replace("...NNNN.NNNN", "........NNNN")
    assert find(LateGradientBucket, two_ranks(single)) == ()


def test_all_reduces_of_tensor_parallel_layers_are_no_buckets() -> None:
    trace = one_rank(SLOW, o=operator("_ReduceFromModelParallelRegion"))
    assert find(LateGradientBucket, trace) == ()


def test_programs_without_buckets_pass() -> None:
    assert find(LateGradientBucket, one_rank(SLOW, f=host("forward"))) == ()


def test_smaller_buckets_cure_neither_waiting_nor_a_slow_link() -> None:
    # Two ranks send 20 MB over a link of 100 GB/s in 0.2 ms. Twice that and 30 us of latency may be
    # transfer; of the remaining 3.57 ms of each last bucket nothing is known.
    sized = collective("ncclDevKernel_AllReduce_Sum_f32", size_bytes=20_000_000, group_size=2)
    trace = one_rank(SLOW, N=sized)
    options = Options(link_bandwidth_bytes_per_s=100e9)
    (finding,) = find(LateGradientBucket, trace, options=options) or ()
    assert finding.saving is not None
    # A tenth of the bucket remains: 0.9 x 0.43 ms in each of two steps.
    assert finding.saving.high_ns == 2 * 387_000
    (unbounded,) = find(LateGradientBucket, trace) or ()
    assert unbounded.saving is not None
    assert unbounded.saving.high_ns == 2 * 3_600_000


@pytest.mark.parametrize(
    ("size_bytes", "bucket_mb"),
    [
        (25 * 2**20, 10),  # 0.4 x 25 MB, DDP's default
        (100 * 2**20, 10),  # 40 MB would still be large
        (5 * 2**20, 2),  # 0.4 x 5 MB
        (2**20, 1),  # no bucket is smaller than 1 MB
    ],
)
def test_the_buckets_that_it_proposes_are_smaller_than_those_of_the_program(
    size_bytes: int, bucket_mb: int
) -> None:
    sized = collective("ncclDevKernel_AllReduce_Sum_f32", size_bytes=size_bytes, group_size=2)
    (finding,) = (
        find(LateGradientBucket, run_of(*(one_rank(SLOW, n, N=sized) for n in (0, 1)))) or ()
    )
    (ddp,) = [each for each in finding.remedies if each.fixes]
    assert dict(ddp.values) == {"bucket_mb": bucket_mb}
    assert f"bucket_cap_mb={bucket_mb})" in ddp.snippet
