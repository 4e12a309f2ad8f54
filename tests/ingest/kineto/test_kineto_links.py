"""Which call launched a kernel, and which operator a backward node belongs to."""

from __future__ import annotations

import pytest

from tb_perfadvisor.trace import Source
from tests.support.kineto_files import event, kernel, named, read, to_bytes


def test_launches_are_joined_by_correlation() -> None:
    trace = read(
        to_bytes(
            [
                event("cudaLaunchKernel", 1, 2, "cuda_runtime", args={"correlation": 70}),
                event("cudaLaunchKernel", 4, 2, "cuda_runtime", args={"correlation": 71}),
                kernel("b", 9, 1, correlation=71),
                kernel("a", 7, 1, correlation=70),
                kernel("lost", 11, 1, correlation=0),
            ]
        )
    )
    launches = {trace.name(row): int(trace.events.launched_by[row]) for row in range(2, 5)}
    assert launches == {"a": 0, "b": 1, "lost": -1}


def test_graph_kernels_link_to_the_graph_launch() -> None:
    # All of a graph's kernels carry its launch's correlation; "graph id" is 0 outside of graphs.
    node = {"correlation": 9, "graph id": 3}
    trace = read(
        to_bytes(
            [
                event("cudaGraphLaunch", 1, 1, "cuda_runtime", args={"correlation": 9}),
                event("cudaLaunchKernel", 3, 1, "cuda_runtime", args={"correlation": 11}),
                kernel("first", 4, 2, **node, **{"graph node id": 17179869185}),
                kernel("second", 7, 2, **node, **{"graph node id": 17179869187}),
                kernel("alone", 10, 2, correlation=11, **{"graph id": 0, "graph node id": 0}),
            ]
        )
    )
    launches = [trace.name(row) for row in trace.events.launched_by[2:].tolist()]
    assert launches == ["cudaGraphLaunch", "cudaGraphLaunch", "cudaLaunchKernel"]


def test_graph_kernels_without_a_recorded_launch_have_no_link() -> None:
    trace = read(to_bytes([kernel("alone", 4, 2, correlation=9, **{"graph id": 3})]))
    assert trace.events.launched_by.tolist() == [-1]


def test_backward_nodes_find_the_innermost_forward_operator() -> None:
    # linear and t both read sequence number 5; t, started last, made the node.
    trace = read(
        to_bytes(
            [
                event("linear", 1, 9, args={"Sequence number": 5, "Fwd thread id": 0}),
                event("t", 2, 1, args={"Sequence number": 5, "Fwd thread id": 0}),
                event("addmm", 4, 5, args={"Sequence number": 6, "Fwd thread id": 0}),
                event("AddmmBackward0", 20, 3, args={"Sequence number": 6, "Fwd thread id": 1}),
                event("TBackward0", 24, 3, args={"Sequence number": 5, "Fwd thread id": 1}),
                event("NoForward", 28, 3, args={"Sequence number": 9, "Fwd thread id": 1}),
            ]
        )
    )
    forward = trace.events.forward
    assert int(forward[named(trace, "AddmmBackward0")]) == named(trace, "addmm")
    assert int(forward[named(trace, "TBackward0")]) == named(trace, "t")
    assert int(forward[named(trace, "NoForward")]) == -1


def test_each_thread_counts_its_own_sequence_numbers() -> None:
    # Two replicas of nn.DataParallel, each in its own thread, with the thread numbers that the
    # profiler assigned. Their backward nodes run on a third thread.
    def numbered(
        name: str, ts: float, tid: int, sequence: int, forward_thread: int
    ) -> dict[str, object]:
        arguments = {"Sequence number": sequence, "Fwd thread id": forward_thread}
        return event(name, ts, 1, args=arguments, tid=tid)

    replicas = [
        numbered(f"{name}{tid}", ts + tid / 10, tid, sequence, 0)
        for tid in (22, 21)
        for name, ts, sequence in (("mm", 1, 0), ("relu", 3, 1))
    ]
    backward = [
        numbered("Relu21Backward0", 10, 30, 1, 4),
        numbered("Relu22Backward0", 12, 31, 1, 5),
        numbered("Mm21Backward0", 14, 30, 0, 4),
        numbered("Mm22Backward0", 16, 31, 0, 5),
        numbered("OutputBackward0", 20, 30, 7, 3),
    ]
    main = [numbered("output", 6, 10, 7, 0)]
    trace = read(to_bytes([*replicas, *main, *backward]))
    forward = trace.events.forward
    for node, operator in (
        ("Relu21Backward0", "relu21"),
        ("Mm21Backward0", "mm21"),
        ("Relu22Backward0", "relu22"),
        ("Mm22Backward0", "mm22"),
        ("OutputBackward0", "output"),
    ):
        assert int(forward[named(trace, node)]) == named(trace, operator), node


def calls(*numbers: int) -> Source:
    """The source of a file with runtime calls of these numbers."""
    launch = "cudaLaunchKernel", 2, "cuda_runtime"
    events = [
        event(launch[0], 4 * place, *launch[1:], args={"correlation": number})
        for place, number in enumerate(numbers)
    ]
    return read(to_bytes(events)).source


def test_the_numbers_of_calls_tell_how_many_were_recorded() -> None:
    # One call in eight, as of CUDA; all of them, as of ROCm; and one in 200.
    assert calls(*range(1, 801, 8)).recorded_calls_share == pytest.approx(1 / 8)
    assert calls(*range(1, 101)).recorded_calls_share == 1
    assert calls(*range(1, 20001, 200)).recorded_calls_share == pytest.approx(1 / 200)


def test_a_jump_in_the_numbers_is_not_a_sample() -> None:
    jumped = calls(*range(1, 801, 8), *range(1_000_001, 1_000_801, 8))
    assert jumped.recorded_calls_share == pytest.approx(1 / 8)


def test_few_calls_do_not_tell() -> None:
    assert calls(1, 1000, 2000).recorded_calls_share is None


def frame(name: str, ts: float, end: float, number: int, caller: int | None) -> dict[str, object]:
    """A call of a Python function, from and to so many microseconds, as the profiler numbers it."""
    args = {"Python id": number, "Python parent id": caller}
    return event(name, ts, round(end - ts, 3), "python_function", args=args)


def test_a_call_without_an_end_ends_with_its_caller() -> None:
    # Both steps call a built-in function whose end was missed, so that it lasts until 100.
    trace = read(
        to_bytes(
            [
                frame("train", 0, 100, 1, None),
                frame("forward", 10, 20, 2, 1),
                frame("my_op", 12, 100, 3, 2),
                frame("backward", 30, 40, 4, 1),
                frame("forward 2", 50, 60, 5, 1),
                frame("my_op 2", 52, 100, 6, 5),
                frame("relu", 55, 58, 7, 5),
                frame("load", 70, 90, 8, 1),
            ]
        )
    )
    events = trace.events

    def span(name: str) -> tuple[int, int]:
        row = named(trace, name)
        return int(events.start_ns[row]), int(events.end_ns[row])

    assert span("my_op") == (12_000, 20_000)
    # Its caller calls something else at 55.
    assert span("my_op 2") == (52_000, 55_000)
    parents = {
        trace.name(row): trace.name(int(events.parent[row]))
        for row in range(len(events))
        if events.parent[row] >= 0
    }
    assert parents == {
        "forward": "train",
        "my_op": "forward",
        "backward": "train",
        "forward 2": "train",
        "my_op 2": "forward 2",
        "relu": "forward 2",
        "load": "train",
    }
    (note,) = (note for note in trace.notes if note.id == "calls-without-end")
    assert note.message.startswith("2 calls of Python functions outlast their callers")


def test_calls_that_still_run_when_the_recording_ends_stay() -> None:
    trace = read(
        to_bytes(
            [
                frame("train", 0, 100, 1, None),
                frame("forward", 60, 100, 2, 1),
                frame("relu", 70, 100, 3, 2),
                # Its caller is on no record.
                frame("other", 90, 100, 4, 77),
            ]
        )
    )
    assert trace.events.end_ns.tolist() == [100_000] * 4
    assert not any(note.id == "calls-without-end" for note in trace.notes)
