"""What a step sends, where the device is behind the host."""

from __future__ import annotations

from tb_perfadvisor.signals import Signals, collectives_of
from tb_perfadvisor.signals.ranks.collective_costs import StepMessages, step_messages
from tb_perfadvisor.testing import TraceBuilder, ms, run_of

MB = 1_000_000
_SIZED = {"dtype": "BFloat16", "group_size": 8}


def behind(steps: int = 3) -> TraceBuilder:
    """Steps of 20 ms that launch all-reduces of 6 and 18 MB, which run a step later.

    In the first step, the device runs two of the step before, of which nothing is known.
    """
    builder = TraceBuilder(rank=0, world_size=8, backend="nccl")
    builder.collective("ncclDevKernel_Generic", ms(3), ms(9), operation="unknown", launched_by="")
    builder.collective("ncclDevKernel_Generic", ms(9), ms(18), operation="unknown", launched_by="")
    for step in range(steps):
        at = ms(20 * step)
        builder.step(step, at, at + ms(20))
        for index, megabytes in enumerate((6, 18)):
            launch, key = at + ms(1 + 5 * index), f"{step}.{index}"
            start, length = at + ms(23 + 6 * index), ms(6 + 3 * index)
            builder.launch(launch, launch + ms(1), key=key)
            builder.collective(
                "ncclDevKernel_Generic",
                start,
                start + length,
                launched_by=key,
                size_bytes=megabytes * MB,
                **_SIZED,
            )
    return builder


def messages(builder: TraceBuilder, operation: str = "all-reduce") -> StepMessages | None:
    return step_messages(Signals(run_of(builder.build())), operation)


def test_bytes_are_those_that_a_step_launches() -> None:
    found = messages(behind())
    assert found is not None
    # Each of three steps launches 6 + 18 MB. Those of the last one run after it.
    assert (found.steps, found.bytes_per_step) == (3, 24 * MB)
    assert found.collectives.duration_ns.sum() == 3 * ms(6 + 9)
    # So do the used steps, whenever their work runs.
    used = collectives_of(Signals(run_of(behind().build())))
    assert used.size_bytes.sum() == 3 * 24 * MB


def test_steps_whose_last_launches_did_not_run_are_left_out() -> None:
    # The recording of the device ended before the last step's all-reduces.
    builder = behind(2).step(2, ms(40), ms(60))
    builder.launch(ms(41), ms(42))
    found = messages(builder)
    assert found is not None
    assert (found.steps, found.bytes_per_step) == (2, 24 * MB)


def test_steps_with_unknown_sizes_are_left_out() -> None:
    builder = behind().step(3, ms(60), ms(80))
    builder.launch(ms(61), ms(62), key="unsized")
    builder.collective("ncclDevKernel_AllReduce", ms(83), ms(89), launched_by="unsized")
    found = messages(builder)
    assert found is not None
    assert (found.steps, found.bytes_per_step) == (3, 24 * MB)


def test_nothing_is_known_without_a_whole_step() -> None:
    builder = TraceBuilder(rank=0, world_size=8, backend="nccl").step(0, 0, ms(20))
    builder.launch(ms(1), ms(2), key="one").launch(ms(3), ms(4), key="two")
    for index, (key, size) in enumerate((("one", {"size_bytes": MB}), ("two", {}))):
        builder.collective("nccl", ms(5 + 2 * index), ms(6 + 2 * index), launched_by=key, **size)
    assert messages(builder) is None
    assert messages(behind(), "all-gather") is None


def test_without_launches_collectives_belong_to_the_step_that_they_run_in() -> None:
    builder = TraceBuilder("jax", world_size=8)
    for step in range(2):
        builder.step(step, ms(10 * step), ms(10 * step + 10))
        start = ms(10 * step + 4)
        builder.collective("all-reduce.1", start, start + ms(2), size_bytes=MB, launched_by="")
    found = messages(builder)
    assert found is not None
    assert (found.steps, found.bytes_per_step) == (2, MB)


def test_steps_that_only_accumulate_count() -> None:
    """Every second step reduces: the mean is half."""
    builder = TraceBuilder(rank=0, world_size=8, backend="nccl")
    for step in range(4):
        at = ms(10 * step)
        builder.step(step, at, at + ms(10))
        builder.launch(at + ms(1), at + ms(2), key=f"{step}")
        if step % 2:
            size = {"size_bytes": 8 * MB}
            builder.collective("nccl", at + ms(3), at + ms(4), launched_by=f"{step}", **size)
        else:
            builder.kernel("gemm", at + ms(3), at + ms(4), launched_by=f"{step}")
    found = messages(builder)
    assert found is not None
    assert (found.steps, found.bytes_per_step) == (4, 4 * MB)
