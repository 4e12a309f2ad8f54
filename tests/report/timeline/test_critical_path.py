"""The critical path of a step, worked out by hand."""

from __future__ import annotations

from tb_perfadvisor.report.timeline.collect_events import collect_events
from tb_perfadvisor.report.timeline.range_sums import critical_path
from tb_perfadvisor.report.timeline.window import TimelineEvents
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.testing import TraceBuilder, ms, run_of


def path_of(events: TimelineEvents, step: int | None) -> list[tuple[str, float, float]]:
    """Track, start and end in milliseconds."""
    return [
        (events.track_label[track], from_ns / ms(1), to_ns / ms(1))
        for track, from_ns, to_ns in critical_path(events, step)["segments"]
    ]


def test_from_a_wait_of_the_host_to_the_work_that_it_waits_for() -> None:
    """A and B run one after the other; the host waits for both, then launches C.

    ms     0    1    2    3    4    5    6    7    8    9    10
    main   |    launch A   B |wait 2.5......7.1|   launch C |wait|
    gpu 7            |A 2......5|B 5...7|           |C 8.1..9.5|
    """
    builder = TraceBuilder()
    for at in (0, 10, 20):
        builder.step(at // 10, ms(at), ms(at + 10))
        launches = {"a": (1, 2), "b": (2.2, 2.3), "c": (8, 8.1)}
        for name, (start, end) in launches.items():
            builder.launch(ms(at + start), ms(at + end), key=f"{name}{at}")
        builder.kernel("a", ms(at + 2), ms(at + 5), launched_by=f"a{at}")
        builder.kernel("b", ms(at + 5), ms(at + 7), launched_by=f"b{at}")
        builder.kernel("c", ms(at + 8.1), ms(at + 9.5), launched_by=f"c{at}")
        builder.synchronize(ms(at + 2.5), ms(at + 7.1))
        builder.synchronize(ms(at + 8.2), ms(at + 9.6))
    events = collect_events(Signals(run_of(builder.build())))
    main, stream = events.track_label
    assert path_of(events, 1) == [
        (main, 10, 12),
        (stream, 12, 17),
        (main, 17, 18.1),
        (stream, 18.1, 19.5),
        (main, 19.5, 20),
    ]
    answer = critical_path(events, 1)
    # 2 + 1.1 + 0.5 ms of the host, 5 + 1.4 ms of the device.
    assert [ns for _, ns in answer["tracks"]] == [ms(6.4), ms(3.6)]
    # There is no step 9: the typical one.
    assert critical_path(events, 9)["step"] in (0, 1, 2)


def test_work_that_waits_for_another_stream() -> None:
    """B is launched at 1.1 ms and its stream is free, but it starts when A is over."""
    builder = TraceBuilder()
    for at in (0, 10, 20):
        builder.step(at // 10, ms(at), ms(at + 10))
        builder.launch(ms(at + 0.5), ms(at + 1), key=f"a{at}")
        builder.launch(ms(at + 1), ms(at + 1.1), key=f"b{at}")
        builder.kernel("a", ms(at + 1), ms(at + 6), launched_by=f"a{at}")
        builder.kernel("b", ms(at + 6.1), ms(at + 9), stream=20, launched_by=f"b{at}")
        builder.synchronize(ms(at + 1.2), ms(at + 9.1))
    events = collect_events(Signals(run_of(builder.build())))
    main, *streams = events.track_label
    first, second = sorted(streams, key=len)
    assert path_of(events, 1) == [
        (main, 10, 11),
        (first, 11, 16),
        (second, 16, 19),
        (main, 19, 20),
    ]


def test_a_thread_that_another_one_started() -> None:
    """The backward thread begins at 4 ms; until then the path is on the thread of the steps."""
    builder = TraceBuilder()
    for at in (0, 10, 20):
        builder.step(at // 10, ms(at), ms(at + 10))
        builder.operator("node", ms(at + 4), ms(at + 6), thread="backward", launches=False)
        builder.launch(ms(at + 5), ms(at + 5.5), thread="backward", key=f"k{at}")
        builder.kernel("k", ms(at + 5.5), ms(at + 10), launched_by=f"k{at}")
    events = collect_events(Signals(run_of(builder.build())))
    labels = [label for label, _, _ in path_of(events, 1)]
    times = [(start, end) for _, start, end in path_of(events, 1)]
    assert times == [(10, 14), (14, 15.5), (15.5, 20)]
    assert (labels[0], labels[1]) == ("main", "backward")


def test_the_steps_wait_for_the_backward_pass() -> None:
    """The last kernel is launched by the thread of the steps, after the backward pass.

    ms        0      1          5    6    7    8    10
    main      |aten::mm|                |k 7..8|
    backward           |node 2....6|
    """
    builder = TraceBuilder()
    for at in (0, 10, 20):
        builder.step(at // 10, ms(at), ms(at + 10))
        builder.operator("aten::mm", ms(at), ms(at + 1), key=f"mm {at}", launches=False)
        builder.operator(
            "node",
            *(ms(at + 2), ms(at + 6)),
            thread="backward",
            forward=f"mm {at}",
            launches=False,
        )
        builder.launch(ms(at + 7), ms(at + 8), key=f"k{at}")
        builder.kernel("k", ms(at + 8), ms(at + 10), launched_by=f"k{at}")
    events = collect_events(Signals(run_of(builder.build())))
    assert [(label, start, end) for label, start, end in path_of(events, 1)[:3]] == [
        ("main", 10, 12),
        ("backward", 12, 16),
        ("main", 16, 18),
    ]


def test_a_backward_pass_with_many_pauses_and_events_without_duration() -> None:
    """A thousand nodes, each after a pause of its thread, and marks between them."""
    builder = TraceBuilder()
    for at in (0, 300, 600):
        builder.step(at // 300, ms(at), ms(at + 300))
        builder.operator("aten::mm", ms(at), ms(at + 1), key=f"mm {at}", launches=False)
        for node in range(1_000):
            begin = at + 2 + node * 0.2
            builder.operator(
                "node",
                *(ms(begin), ms(begin + 0.1)),
                thread="backward",
                forward=f"mm {at}",
                launches=False,
            )
            builder.annotation("mark", ms(begin + 0.16), ms(begin + 0.16), thread="backward")
        builder.launch(ms(at + 250), ms(at + 251), key=f"k{at}")
        builder.kernel("k", ms(at + 251), ms(at + 300), launched_by=f"k{at}")
    events = collect_events(Signals(run_of(builder.build())))
    answer = critical_path(events, 1)
    on = {events.track_label[track]: ns for track, ns in answer["tracks"]}
    # A thousand nodes of 0.1 ms; the thread of the steps waits for the kernel's 49 ms no more.
    assert on["backward"] == ms(100)
    assert on["main"] == ms(300 - 49 - 100)


def test_without_steps_or_a_device() -> None:
    builder = TraceBuilder().operator("aten::mm", 0, ms(4))
    assert critical_path(collect_events(Signals(run_of(builder.build()))), None)["segments"] == []
    for number in range(3):
        builder.step(number, ms(10 * number), ms(10 * number + 10))
        builder.operator("aten::mm", ms(10 * number + 5), ms(10 * number + 9))
    events = collect_events(Signals(run_of(builder.build())))
    assert [(start, end) for _, start, end in path_of(events, 1)] == [(10, 20)]
