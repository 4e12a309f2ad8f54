"""The calls view: where the host's time goes by call, and the device's by module."""

from __future__ import annotations

import pytest

from tb_perfadvisor.report.views import available_views, calls
from tb_perfadvisor.report.views.calls import CallTree, make_calls_view
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.testing import TraceBuilder, draw, run_of, us
from tb_perfadvisor.trace import Assembler, EventKind, Source, Trace, TrackKind


def recorded(*, with_device: bool = True) -> Trace:
    """A thread that calls a module twice, whose operator launches a kernel, and one that idles.

    ns       0    100   200   300   400   500
    main     |step 0..500                    |
             |train.py(3): main 0..500       |
             |nn.Module: Net_0 0..200 |  |nn.Module: Net_0 300..400|
             |aten::mm 50..150, launch 60..70 | |aten::mm 320..340, launch 325..330|
    loader   |wait 0..100|
    stream   kernel gemm 100..180, 340..400
    """
    assembler = Assembler()
    main = assembler.add_track(TrackKind.HOST_THREAD, label="main")
    loader = assembler.add_track(TrackKind.HOST_THREAD, thread=7, label="loader")
    stream = assembler.add_track(TrackKind.DEVICE_STREAM, device=0, label="stream 7")
    drawn = [
        (0, 500, EventKind.ANNOTATION, "everything", main),
        (0, 500, EventKind.PYTHON, "train.py(3): main", main),
        (0, 200, EventKind.PYTHON, "nn.Module: Net_0", main),
        (50, 100, EventKind.OPERATOR, "aten::mm", main),
        (60, 10, EventKind.LAUNCH, "cudaLaunchKernel", main),
        (300, 100, EventKind.PYTHON, "nn.Module: Net_0", main),
        (320, 20, EventKind.OPERATOR, "aten::mm", main),
        (325, 5, EventKind.LAUNCH, "cudaLaunchKernel", main),
        (0, 100, EventKind.ANNOTATION, "wait", loader),
        (100, 80, EventKind.KERNEL, "gemm", stream),
        (340, 60, EventKind.KERNEL, "gemm", stream),
    ]
    if not with_device:
        drawn = [event for event in drawn if event[4] != stream]
    names = assembler.intern_all([name for *_, name, _ in drawn])
    assembler.add_events(
        [start for start, *_ in drawn],
        [duration for _, duration, *_ in drawn],
        kind=[kind for _, _, kind, _, _ in drawn],
        name=names,
        track=[track for *_, track in drawn],
        # Kernels have the numbers of their launches.
        correlation=[-1, -1, -1, -1, 1, -1, -1, 2, -1, 1, 2][: len(drawn)],
    )
    return assembler.finish(Source(path="x.json", format="test"))


def rows(tree: CallTree) -> dict[str, tuple[int, int, int]]:
    """Count, total and own time by path."""
    paths: list[str] = []
    found = {}
    for place, parent in enumerate(tree.parent):
        path = f"{paths[parent]} > " if parent >= 0 else ""
        paths.append(path + tree.names[tree.name[place]])
        found[paths[-1]] = (tree.count[place], tree.total_ns[place], tree.self_ns[place])
    return found


def test_calls_of_a_thread_by_path() -> None:
    view = make_calls_view(Signals(run_of(recorded(with_device=False))))
    assert view is not None
    thread = next(each for each in view.threads if each.label == "main")
    main = "everything > train.py(3): main"
    # The used window is from the first operator to the end of the last one, 50 to 340. Of its 290
    # ns, 150 + 40 are in modules; these have 150 - 100 and 40 - 20 of their own.
    assert rows(thread) == {
        "everything": (1, 290, 0),
        main: (1, 290, 100),
        f"{main} > nn.Module: Net_0": (2, 190, 70),
        f"{main} > nn.Module: Net_0 > aten::mm": (2, 120, 105),
        f"{main} > nn.Module: Net_0 > aten::mm > cudaLaunchKernel": (2, 15, 15),
    }
    assert [each.label for each in view.threads] == ["main", "loader"]
    assert (thread.kind[0], thread.kind[-1]) == ("annotation", "launch")


def test_kernels_are_below_their_modules() -> None:
    view = make_calls_view(Signals(run_of(recorded())))
    assert view is not None
    assert view.kernels is not None
    assert view.shows_modules
    assert rows(view.kernels) == {
        "Net_0": (2, 140, 0),
        "Net_0 > aten::mm": (2, 140, 0),
        "Net_0 > aten::mm > gemm": (2, 140, 140),
    }
    assert view.kernels.kind == ["module", "module", "kernel"]
    assert (view.kernels.start_ns[-1], view.kernels.duration_ns[-1]) == (100, 80)


def test_kernels_without_modules_are_below_their_ranges() -> None:
    builder = TraceBuilder()
    for step in range(2):
        begin = us(100 * step)
        builder.step(step, begin, begin + us(100))
        builder.annotation(f"iteration {step}", begin, begin + us(90))
        builder.annotation("forward", begin + us(1), begin + us(40))
        builder.annotation("optimizer", begin + us(50), begin + us(80))
        for name, at, length in (("gemm", 2, 30), ("adam", 52, 20)):
            start = begin + us(at)
            builder.launch(start, start + us(1), key=f"{name} {step}")
            builder.kernel(
                name, start + us(2), start + us(2 + length), launched_by=f"{name} {step}"
            )
        # Launched by a thread without ranges, as the backward pass is.
        builder.launch(begin + us(41), begin + us(42), key=f"back {step}", thread="autograd")
        builder.kernel("dgrad", begin + us(43), begin + us(48), launched_by=f"back {step}")
    view = make_calls_view(Signals(run_of(builder.build())))
    assert view is not None
    assert view.kernels is not None
    assert {path: total for path, (_, total, _) in rows(view.kernels).items()} == {
        "iteration": 2 * us(50),
        "iteration > forward": 2 * us(30),
        "iteration > forward > gemm": 2 * us(30),
        "iteration > optimizer": 2 * us(20),
        "iteration > optimizer > adam": 2 * us(20),
        "dgrad": 2 * us(5),
    }


def test_kernels_of_tensorflow_are_below_their_scopes() -> None:
    builder = TraceBuilder("tensorflow")
    builder.step(0, 0, us(100))
    builder.annotation("ExecutorState::Process", us(1), us(20))
    builder.operator("StatefulPartitionedCall/net/dense/MatMul:MatMul", us(2), us(9))
    builder.launch(us(3), us(4), key="launch")
    builder.kernel("gemm", us(5), us(45), launched_by="launch")
    view = make_calls_view(Signals(run_of(builder.build())))
    assert view is not None
    assert view.kernels is not None
    assert rows(view.kernels) == {
        path: (1, us(40), us(40) if path.endswith("gemm") else 0)
        for path in (
            "net",
            "net > dense",
            "net > dense > MatMul:MatMul",
            "net > dense > MatMul:MatMul > gemm",
        )
    }


def test_the_largest_nodes_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "MAX_NODES", 3)
    view = make_calls_view(Signals(run_of(recorded())))
    assert view is not None
    thread = next(each for each in view.threads if each.label == "main")
    assert len(thread.parent) == 3
    assert thread.truncated == 2
    assert thread.parent == [-1, 0, 1]


def test_step_markers_split_nothing() -> None:
    trace = draw("""
        cell 1ms
        step   |....|....|....|
        main   |oo..|oo..|oo..|
    """)
    view = make_calls_view(Signals(run_of(trace)))
    assert view is not None
    (thread,) = view.threads
    assert [count for count, _, _ in rows(thread).values()] == [3]


def test_what_has_no_events_has_no_calls() -> None:
    signals = Signals(run_of(Assembler().finish(Source(path="x", format="test"))))
    assert make_calls_view(signals) is None
    assert "calls" not in available_views(signals)


def test_calls_that_wait_are_no_work() -> None:
    """A synchronization, what is inside it, and a thread that sleeps; the operator works."""
    builder = TraceBuilder()
    builder.step(0, 0, us(100))
    builder.operator("aten::mm", 0, us(20), key="mm")
    builder.kernel("gemm", us(20), us(90), launched_by="mm")
    builder.host(EventKind.SYNCHRONIZE, "cudaStreamSynchronize", us(20), us(70))
    builder.host(EventKind.PYTHON, "poll.py(3): ask", us(30), us(40))
    builder.host(EventKind.PYTHON, "<built-in function sleep>", us(70), us(90))
    builder.host(EventKind.PYTHON, "model.py(7): sleepless", us(90), us(100))
    view = make_calls_view(Signals(run_of(builder.build())))
    assert view is not None
    (thread,) = view.threads
    kinds = {thread.names[name]: kind for name, kind in zip(thread.name, thread.kind, strict=True)}
    waits = {name for name, kind in kinds.items() if kind == "wait"}
    assert waits == {"cudaStreamSynchronize", "poll.py(3): ask", "<built-in function sleep>"}
    assert kinds["model.py(7): sleepless"] == "python"
