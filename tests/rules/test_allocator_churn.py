from __future__ import annotations

from tb_perfadvisor.rules.launch.switched_on import AllocatorChurn
from tb_perfadvisor.testing import TraceBuilder, check_rule, find, ms, us
from tb_perfadvisor.testing.symbols import host
from tb_perfadvisor.trace import EventKind, Trace

SLOW = """
    cell 1ms
    step   |......|......|......|
    main   |oAAAo.|oAAAo.|oAAAo.|
    gpu 7  |K...KK|K...KK|K...KK|
"""
FIXED = """
    cell 1ms
    step   |...|...|...|
    main   |oo.|oo.|oo.|
    gpu 7  |KKK|KKK|KKK|
"""


def test_saves_what_the_fix_saves() -> None:
    checked = check_rule(AllocatorChurn, slow=SLOW, fixed=FIXED, saves="3ms")
    (finding,) = checked.findings
    assert finding.summary.endswith("3 of 3 steps do, with 1 call per step.")
    assert "expandable_segments" in finding.remedies[0].snippet


def test_filling_the_cache_once_is_not_churn() -> None:
    trace = """
        cell 1ms
        step   |......|...|...|
        main   |oAAAo.|oo.|oo.|
        gpu 7  |K...KK|KKK|KKK|
    """
    assert find(AllocatorChurn, trace) == ()


def test_allocations_mostly_in_one_step_are_left_alone() -> None:
    # 6 of 8 ms in one of three steps.
    trace = """
        cell 1ms
        step   |.........|....|....|
        main   |oAAAAAAo.|oAo.|oAo.|
        gpu 7  |K......KK|K.KK|K.KK|
    """
    assert find(AllocatorChurn, trace) == ()


def test_a_later_step_that_frees_and_allocates_is_short_of_memory() -> None:
    legend = {
        "A": host("cudaMalloc", EventKind.ALLOCATE),
        "F": host("cudaFree", EventKind.ALLOCATE),
    }
    later = """
        cell 1ms
        step   |....|.........|....|
        main   |oAo.|oFFFAAAo.|oAo.|
        gpu 7  |K.KK|K......KK|K.KK|
    """
    (finding,) = find(AllocatorChurn, later, legend=legend) or ()
    assert finding.saving is not None
    # 8 ms in all; it may never happen again.
    assert (finding.saving.low_ns, finding.saving.expected_ns) == (0, 4_000_000)
    assert finding.saving.high_ns == 8_000_000
    assert "so it was short or in pieces" in finding.summary
    first = """
        cell 1ms
        step   |.........|....|....|
        main   |oFFFAAAo.|oAo.|oAo.|
        gpu 7  |K......KK|K.KK|K.KK|
    """
    assert find(AllocatorChurn, first, legend=legend) == ()


def test_an_operator_that_frees_and_allocates_is_short_of_memory_in_any_step() -> None:
    def first(name: str) -> Trace:
        builder = TraceBuilder()
        for number in range(3):
            at = ms(20 * number)
            builder.step(number, at, at + ms(20))
            start = at + ms(1)
            if number == 0:
                builder.operator(name, start, start + ms(12), launches=False)
                builder.host(EventKind.ALLOCATE, "cudaMalloc", start, start + ms(1))
                builder.host(EventKind.ALLOCATE, "cudaFree", start + ms(1), start + ms(9))
                builder.host(EventKind.ALLOCATE, "cudaMalloc", start + ms(9), start + ms(12))
            builder.operator("aten::mm", at + ms(13), at + ms(14))
            builder.kernel("sgemm", at + ms(14), at + ms(19))
        return builder.build()

    # The driver had no memory left, so the allocator gave back what it had cached.
    (finding,) = find(AllocatorChurn, first("aten::empty")) or ()
    assert finding.saving is not None
    assert finding.saving.low_ns == 0
    # A convolution that has tried its algorithms gives back what it needed for that.
    assert find(AllocatorChurn, first("aten::cudnn_convolution")) == ()


def test_allocations_that_overlap_device_work_cost_nothing() -> None:
    trace = """
        cell 1ms
        step   |......|......|
        main   |oAAAo.|oAAAo.|
        gpu 7  |KKKKKK|KKKKKK|
    """
    assert find(AllocatorChurn, trace) == ()


def test_the_remedy_fits_the_calls() -> None:
    frees = {"A": host("cudaFree", EventKind.ALLOCATE)}
    (finding,) = find(AllocatorChurn, SLOW, legend=frees) or ()
    assert "empty_cache" in finding.remedies[0].text
    pinned = {"A": host("cudaHostAlloc", EventKind.ALLOCATE)}
    (finding,) = find(AllocatorChurn, SLOW, legend=pinned) or ()
    assert "pin_memory" in finding.remedies[0].snippet


def allocating(
    *, direct: int = 10, frame: str = "", host_memory: bool = False, reserved: tuple[int, ...] = ()
) -> Trace:
    """Steps of 40 ms: ten tensors, some of them from the driver, and a kernel of 10 ms."""
    builder = TraceBuilder(has_memory=host_memory)
    for number in range(3):
        at = 40 * number
        builder.step(number, ms(at), ms(at + 40))
        if frame:
            builder.host(EventKind.PYTHON, frame, ms(at), ms(at) + us(10))
        for tensor in range(10):
            start = ms(at + 2 * tensor) + us(20)
            builder.operator("aten::empty", start, start + ms(1), launches=False)
            if tensor < direct:
                builder.host(EventKind.ALLOCATE, "cudaMalloc", start, start + ms(1))
        if host_memory:
            builder.memory(ms(at + 5), 64, device=-1)
        for place, size in enumerate(reserved):
            builder.memory(ms(at + 5 + place), 64, reserved_bytes=size)
        builder.operator("aten::mm", ms(at + 25), ms(at + 26))
        builder.kernel("sgemm", ms(at + 26), ms(at + 36))
    return builder.build()


def changes(trace: Trace) -> list[str]:
    (finding,) = find(AllocatorChurn, trace) or ()
    return [remedy.change for remedy in finding.remedies if remedy.framework == "pytorch"]


def test_an_allocator_that_asks_the_driver_for_each_tensor_is_off() -> None:
    checked = check_rule(AllocatorChurn, slow=allocating(), fixed=allocating(direct=0))
    (finding,) = checked.findings
    assert finding.title == "Turn PyTorch's caching allocator on"
    assert finding.summary.endswith(
        "PyTorch's caching allocator is off: all 30 calls of aten::empty ask the driver."
    )
    assert changes(allocating()) == ["caching-allocator"]
    # A cache serves some of the tensors: the calls have another reason.
    assert "caching-allocator" in changes(allocating(direct=9))  # 90 %
    assert "caching-allocator" not in changes(allocating(direct=8))


def test_an_allocator_that_reports_memory_of_the_host_only_is_off() -> None:
    (finding,) = find(AllocatorChurn, allocating(direct=3, host_memory=True)) or ()
    assert finding.summary.endswith(
        "it reported 3 changes of memory on the host and none on the device."
    )
    assert "caching-allocator" not in changes(
        allocating(direct=3, host_memory=True, reserved=(100, 100))
    )


def test_a_cache_that_is_emptied_is_not_off() -> None:
    frame = "torch/cuda/memory.py(222): empty_cache"
    for trace in (allocating(frame=frame), allocating(reserved=(200, 100))):
        assert set(changes(trace)) == {"keep-allocator-cache"}


def test_just_below_and_just_above_the_limit() -> None:
    assert find(AllocatorChurn, SLOW, settings={"minimum_share": 0.51}) == ()
    assert len(find(AllocatorChurn, SLOW, settings={"minimum_share": 0.49}) or ()) == 1
