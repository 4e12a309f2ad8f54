from __future__ import annotations

from tb_perfadvisor.rules.evidence.synchronization import describe_wait
from tb_perfadvisor.rules.finding import Table
from tb_perfadvisor.rules.launch.waits import BlockedStream
from tb_perfadvisor.signals.host.queued_waits import QueuedWait
from tb_perfadvisor.testing import check_rule, find, host
from tb_perfadvisor.trace import EventKind

LEGEND = {"x": host("exchange", EventKind.ANNOTATION)}
# Both kernels are launched at the beginning, but the second one starts two cells after the end of
# the first.
SLOW = """
    cell 1ms
    step   |..........|..........|..........|
    main   |L'........|L'........|L'........|
    main   |..xxxxx...|..xxxxx...|..xxxxx...|
    gpu 7  |.KKK..KKKK|.KKK..KKKK|.KKK..KKKK|
"""
FIXED = """
    cell 1ms
    step   |........|........|........|
    main   |L'......|L'......|L'......|
    main   |..xxx...|..xxx...|..xxx...|
    gpu 7  |.KKK'KKK|.KKK'KKK|.KKK'KKK|
"""
LINKS = {("gpu 7", number): ("main", number) for number in range(6)}


def test_names_what_waits() -> None:
    checked = check_rule(BlockedStream, slow=SLOW, fixed=FIXED, legend=LEGEND, links=LINKS)
    (finding,) = checked.findings
    # Nothing tells what ends the wait of 2 ms in each of three steps.
    assert finding.saving is not None
    assert finding.saving.has_no_price
    assert finding.saving.high_ns == 6_000_000
    # 2 of 10 ms.
    assert "2.00 ms of each step (20.0 %)" in finding.summary
    assert "on stream 7, launched by " in finding.summary
    assert "under exchange: 2.00 ms of each step" in finding.summary
    table = finding.evidence[0]
    assert isinstance(table, Table)
    ((stream, _, _, host_call, annotation, count, idle_ns),) = table.rows
    assert (stream, host_call, annotation) == ("stream 7", None, "exchange")
    assert (count, idle_ns) == (3, 6_000_000)


def test_just_below_and_just_above_the_limit() -> None:
    for limit, fires in ((0.21, False), (0.2, True)):
        settings = {"minimum_share": limit}
        found = find(BlockedStream, SLOW, settings=settings, legend=LEGEND, links=LINKS)
        assert bool(found) is fires


def test_work_that_is_launched_late_does_not_wait() -> None:
    late = """
        cell 1ms
        step   |..........|..........|..........|
        main   |L....L....|L....L....|L....L....|
        gpu 7  |KKK...KKKK|KKK...KKKK|KKK...KKKK|
    """
    assert find(BlockedStream, late) == ()


def test_recorded_waits_of_streams_are_not_asked_for_again() -> None:
    waits = LEGEND | {"w": host("Stream Wait Event", EventKind.DEVICE_SYNC)}
    # The wait is put on the stream between the launches of its two kernels.
    awaited = """
        cell 1ms
        step   |..........|..........|..........|
        main   |L.L.......|L.L.......|L.L.......|
        main   |..........|..........|..........|
        gpu 7  |.KKK..KKKK|.KKK..KKKK|.KKK..KKKK|
        gpu 7  |.w........|.w........|.w........|
    """
    (finding,) = find(BlockedStream, awaited, legend=waits, links=LINKS) or ()
    assert "For 2.00 ms of each step (20.0 %) of it, the program made the stream wait" in (
        finding.summary
    )
    assert [remedy.change for remedy in finding.remedies] == [
        "look-at-blocked-work",
        "look-at-other-processes",
    ]
    # Before the first kernel, as here, it does not explain why the second one waits.
    early = awaited.replace("|.w........", "|w.........")
    (finding,) = find(BlockedStream, early, legend=waits, links=LINKS) or ()
    assert "No stream was told to wait" in finding.summary
    (unknown,) = find(BlockedStream, SLOW, legend=LEGEND, links=LINKS) or ()
    assert unknown.remedies[0].change == "record-stream-waits"


def described(event: str, launched_by: str = "", host_call: str = "") -> str:
    return describe_wait(QueuedWait("stream 7", event, launched_by, host_call, "", 1, 1))


def test_names_are_brief() -> None:
    # The names of kernels are from recorded traces (hta/trace_filter, xprof-demo).
    gamma = (
        "void at::native::(anonymous namespace)::GammaBetaBackwardCUDAKernel_32x32<float, float>"
        "(long, long, float const*)"
    )
    wanted = "at::native::GammaBetaBackwardCUDAKernel_32x32 on stream 7"
    assert described(gamma) == wanted
    nccl = "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)"
    assert described(nccl) == "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t on stream 7"
    assert described("Memcpy HtoD (Pageable -> Device)", "cudaMemcpyAsync", "aten::copy_") == (
        "Memcpy HtoD (Pageable -> Device) on stream 7, launched by cudaMemcpyAsync, while the host "
        "is in aten::copy_"
    )
    # TensorFlow's calls have the names of their kernels.
    assert described(gamma, gamma, gamma) == wanted


def test_a_few_microseconds_between_kernels_are_their_start() -> None:
    # All kernels of a step are launched at its beginning. The gaps are two cells: 8 us, or 12.
    trace = """
        step   |....................|....................|
        main   |L'''''..............|L'''''..............|
        gpu 7  |......KK..KK..KK..KK|..KK..KK..KK..KK..KK|
    """
    links = {("gpu 7", kernel): ("main", kernel) for kernel in range(9)}
    for cell_us, fires in ((4, False), (6, True)):
        drawing = f"\n    cell {cell_us}us{trace}"
        assert bool(find(BlockedStream, drawing, links=links)) is fires
