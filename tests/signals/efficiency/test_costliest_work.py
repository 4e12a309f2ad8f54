from __future__ import annotations

import pytest
from msgspec.structs import replace

from tb_perfadvisor.machine.facts import Facts, Line, Lines
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.efficiency.costliest_work import costliest_work, module_times
from tb_perfadvisor.testing import TraceBuilder, draw, ms, run_of
from tb_perfadvisor.testing.symbols import operator

H100 = "NVIDIA H100 80GB HBM3"


def named(signals: Signals) -> list[tuple[str, bool, int]]:
    """Names, whether nothing runs meanwhile, and milliseconds of the window."""
    return [(work.name, work.is_idle, work.time_ns // ms(1)) for work in costliest_work(signals)]


def test_work_has_its_operators_names_and_idle_time_the_calls_of_the_host() -> None:
    drawing = """
        cell 1ms
        step   |..........|..........|
        main   |mmoppppppp|mmoppppppp|
        gpu 7  |..HHHK....|..HHHK....|
    """
    legend = {"m": operator("aten::mm"), "o": operator("aten::add")}
    assert named(Signals(run_of(draw(drawing, legend=legend)))) == [
        ("aten::add", False, 8),  # it launches both kernels: four of ten milliseconds, twice
        ("modules/module.py:1751 _wrapped_call_impl", True, 8),
    ]


def test_what_runs_at_the_same_time_shares_it() -> None:
    builder = TraceBuilder()
    builder.step(0, 0, ms(10))
    builder.kernel("long_kernel", 0, ms(10), stream=1)
    builder.kernel("short_kernel", ms(4), ms(9), stream=2)
    # 15 ms of work in 10 ms: two thirds and one third of them.
    assert named(Signals(run_of(builder.build()))) == [("long_kernel", False, 6)]


def test_communication_has_only_its_exposed_time() -> None:
    builder = TraceBuilder().step(0, 0, ms(10))
    builder.kernel("gemm", 0, ms(6), stream=1)
    builder.collective("ncclAllReduce", ms(2), ms(10), stream=2)
    assert named(Signals(run_of(builder.build()))) == [("gemm", False, 6)]
    builder = TraceBuilder().step(0, 0, ms(10))
    builder.kernel("gemm", 0, ms(4), stream=1)
    builder.collective("ncclAllReduce", ms(2), ms(10), stream=2)
    assert named(Signals(run_of(builder.build()))) == [("ncclAllReduce", False, 6)]


@pytest.mark.parametrize("order", [("a_kernel", "b_kernel"), ("b_kernel", "a_kernel")])
def test_of_equal_times_the_name_decides(order: tuple[str, str]) -> None:
    # Formats store names in different orders.
    builder = TraceBuilder()
    builder.step(0, 0, ms(10))
    for place, name in enumerate(order):
        builder.kernel(name, ms(5 * place), ms(5 * place + 5))
    assert named(Signals(run_of(builder.build())))[0] == ("a_kernel", False, 5)


def test_what_was_not_recorded_has_its_cause_s_name() -> None:
    builder = TraceBuilder()
    builder.step(0, 0, ms(10))
    builder.kernel("kernel", ms(8), ms(10))
    assert named(Signals(run_of(builder.build())))[0] == ("Unexplained", True, 8)


def test_without_the_events_of_the_device_operators_are_named() -> None:
    drawing = """
        cell 1ms
        step   |..........|..........|
        main   |Lmmmmmaaa.|Lmmmmmaaa.|
    """
    legend = {"m": operator("aten::mm"), "a": operator("aten::add")}
    signals = Signals(run_of(draw(drawing, legend=legend)))
    assert signals.device.is_missing
    assert named(signals) == [("aten::mm", False, 10), ("Launching", True, 2)]


def test_operators_of_two_programs_with_one_name_have_their_own_lines() -> None:
    drawing = """
        cell 1ms
        step   |.........|.........|
        main   |mmmmaaa..|mmmmaaa..|
    """
    legend = {
        "m": replace(operator("fusion.1"), hlo={"source_line": "model.py:12"}),
        "a": replace(operator("fusion.1"), hlo={"source_line": "loss.py:3"}),
    }
    signals = Signals(run_of(draw(drawing, legend=legend, framework="jax")))
    found = [(work.name, work.place, work.time_ns) for work in costliest_work(signals)]
    assert found[:2] == [("fusion", "model.py:12", ms(8)), ("fusion", "loss.py:3", ms(6))]


def test_needs_are_known_from_shapes() -> None:
    drawing = """
        cell 1ms
        step   |..........|..........|
        main   |vSSSSSSSSS|vSSSSSSSSS|
        gpu 7  |HHHHHHHHHH|HHHHHHHHHH|
    """
    legend = {
        "v": operator(
            "aten::mm", shapes="[[8192,8192],[8192,8192]]", dtypes="c10::BFloat16;c10::BFloat16"
        )
    }
    (product,) = costliest_work(Signals(run_of(draw(drawing, legend=legend, device=H100))))
    # 2 x 8192^3 FLOP at 0.90 of 989.4 TFLOP/s take 1.23 ms; waves and writes add a few percent.
    assert product.achieved_share == pytest.approx(0.126, abs=0.005)
    assert product.bound == "compute"


def test_communication_of_hosts_has_its_causes_name() -> None:
    builder = TraceBuilder().step(0, 0, ms(10))
    builder.operator("aten::mm", 0, ms(4), launches=False)
    builder.collective("gloo:all_reduce", ms(4), ms(10), thread="main")
    assert named(Signals(run_of(builder.build()))) == [("Exposed communication", False, 6)]


def times(builder: TraceBuilder) -> dict[str, list[int]]:
    """Nanoseconds of each module by step."""
    found = module_times(Signals(run_of(builder.build())))
    assert found is not None
    names = ("/".join(path) for path in found.paths)
    return dict(zip(names, found.step_ns.tolist(), strict=True))


def test_modules_have_the_time_of_their_own_kernels() -> None:
    builder = TraceBuilder()
    for step in range(2):
        at = ms(10 * step)
        builder.step(step, at, at + ms(10))
        builder.annotation("nn.Module: Net_0", at, at + ms(4))
        builder.annotation("nn.Module: Linear_0", at + ms(1), at + ms(2))
        for key, called, start, length in (
            ("net", 0, 1, 2),
            ("linear", 1, 3, 4),
            ("none", 5, 7, 3),
        ):
            call = at + ms(called) + ms(0.5)
            builder.launch(call, call + 1, key=f"{key} {step}")
            start_ns = at + ms(start)
            builder.kernel(key, start_ns, start_ns + ms(length), launched_by=f"{key} {step}")
    assert times(builder) == {
        "Net_0": [ms(2), ms(2)],  # without the 4 ms of the linear layer inside
        "Net_0/Linear_0": [ms(4), ms(4)],
        "": [ms(3), ms(3)],
    }


def test_modules_share_the_time_in_which_both_run() -> None:
    builder = TraceBuilder()
    for step in range(2):
        at = ms(10 * step)
        builder.step(step, at, at + ms(10))
        for stream, (name, length) in enumerate((("a", 9), ("b", 3))):
            call = at + ms(stream) // 10
            builder.annotation(name, call, call + 1000)
            builder.launch(call, call + 500, key=f"{name} {step}")
            builder.kernel(
                name, at + ms(1), at + ms(1 + length), stream=stream, launched_by=f"{name} {step}"
            )
    # 12 ms of work in 9 ms: three quarters of each.
    assert times(builder) == {"a": [ms(6.75), ms(6.75)], "b": [ms(2.25), ms(2.25)]}


def test_modules_of_a_program_without_a_device_have_the_time_of_operators() -> None:
    builder = TraceBuilder()
    for step in range(2):
        at = ms(10 * step)
        builder.step(step, at, at + ms(10))
        builder.annotation("nn.Module: Linear_0", at, at + ms(6))
        builder.operator("aten::linear", at, at + ms(6), launches=False)
        builder.operator("aten::addmm", at + ms(1), at + ms(5), launches=False)
        builder.operator("aten::sum", at + ms(7), at + ms(8), launches=False)
    assert times(builder) == {"Linear_0": [ms(6), ms(6)], "": [ms(1), ms(1)]}


def test_scopes_of_tensorflow_are_modules() -> None:
    builder = TraceBuilder("tensorflow")
    for step in range(2):
        at = ms(10 * step)
        builder.step(step, at, at + ms(10))
        name = "StatefulPartitionedCall/sequential_1/dense_2/MatMul:MatMul"
        builder.operator(name, at + ms(1), at + ms(5), thread="executor", key=f"call {step}")
        builder.operator("AddV2:AddV2", at + ms(6), at + ms(7), thread="executor")
        builder.launch(at + ms(2), at + ms(3), thread="executor", key=f"launch {step}")
        builder.kernel("gemm", at + ms(3), at + ms(7), launched_by=f"launch {step}")
    assert times(builder) == {"sequential_1/dense_2": [ms(4), ms(4)]}


def test_scopes_of_xla_are_modules() -> None:
    builder = TraceBuilder("jax").device("TPU v5e", kind="tpu")
    for step in range(2):
        at = ms(10 * step)
        builder.step(step, at, at + ms(10))
        path = "jit(train)/jvp(Model)/Dense_0/dot_general"
        builder.xla_op("fusion.1", at, at + ms(4), path=path)
        builder.xla_op("copy.2", at + ms(4), at + ms(5))
    assert times(builder) == {"jit(train)/jvp(Model)/Dense_0": [ms(4), ms(4)], "": [ms(1), ms(1)]}


def test_without_any_module_there_are_no_times() -> None:
    builder = TraceBuilder().step(0, 0, ms(10)).kernel("gemm", 0, ms(6))
    assert module_times(Signals(run_of(builder.build()))) is None


def test_modules_have_the_work_that_their_steps_launched() -> None:
    """The device lags by a step: what it runs at first was launched before the recording."""
    builder = TraceBuilder()
    for step in range(4):
        at = ms(10 * step)
        builder.step(step, at, at + ms(10))
        builder.annotation("nn.Module: Net_0", at, at + ms(2))
        builder.launch(at + ms(1), at + ms(1.5), key=f"{step}")
        earlier = f"{step - 1}" if step else None
        builder.kernel("gemm", at + ms(2), at + ms(8), launched_by=earlier)
    builder.kernel("gemm", ms(42), ms(48), launched_by="3")
    assert times(builder) == {"Net_0": [ms(6)] * 4}


def test_idle_time_without_a_call_has_the_line_where_run_saw_the_program() -> None:
    drawing = """
        cell 1ms
        step   |..........|..........|
        main   |o.........|o.........|
        gpu 7  |K.........|K.........|
    """
    lines = Lines(
        40.0,
        1000,
        (
            Line("train.py", 9, 0.5, "", "torch._tensor.backward"),
            Line("train.py", 12, 0.45, "draw", "scipy.ndimage.zoom"),
        ),
    )
    trace = draw(drawing, legend={"o": operator("aten::add")})
    places = {
        work.place
        for seen in (None, lines)
        for work in costliest_work(Signals(run_of(replace(trace, facts=Facts(lines=seen)))))
        if work.is_idle
    }
    # Nine of ten milliseconds are idle: 0.45 is half of that.
    assert places == {"", "train.py:12 draw"}
