from __future__ import annotations

from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.core.origins import Origins
from tb_perfadvisor.testing import TraceBuilder, ms, run_of
from tb_perfadvisor.testing.symbols import host
from tb_perfadvisor.trace import EventKind, Trace

NODE = "autograd::engine::evaluate_function: "


def framed(builder: TraceBuilder, name: str, start: float, end: float) -> None:
    builder.add(host(name, EventKind.PYTHON), ms(start), ms(end), thread="main")


def row_of(trace: Trace, name: str) -> int:
    (row,) = (row for row in range(len(trace.events)) if trace.name(row) == name)
    return row


def origins_of(trace: Trace) -> Origins:
    return Signals(run_of(trace)).origins


def test_a_kernel_of_the_backward_pass_belongs_to_the_forward_operator_s_module() -> None:
    builder = TraceBuilder()
    framed(builder, "train.py(30): train", 0, 20)
    framed(builder, "nn.Module: Net_0", 0, 6)
    framed(builder, "net.py(7): forward", 0, 6)
    framed(builder, "nn.Module: Linear_1", 1, 4)
    builder.operator("aten::addmm", ms(2), ms(3), key="forward")
    builder.operator("aten::relu", ms(4), ms(5))
    builder.operator(f"{NODE}AddmmBackward0", ms(10), ms(14), thread="pt_autograd_0",
                     forward="forward", launches=False)  # fmt: skip
    builder.operator("aten::mm", ms(11), ms(13), thread="pt_autograd_0")
    builder.kernel("a", ms(12), ms(18))
    trace = builder.build()
    found = origins_of(trace)
    for name in ("aten::mm", "a", f"{NODE}AddmmBackward0"):
        row = row_of(trace, name)
        assert found.module_of(row) == "Linear_1", name
        assert found.line_of(row) == "net.py:7 forward", name
        assert trace.name(int(found.forward[row])) == "aten::addmm", name
    assert found.module_of(row_of(trace, "aten::relu")) == "Net_0"
    assert found.node[row_of(trace, "aten::relu")] == -1
    assert found.module_of(row_of(trace, "train.py(30): train")) is None


def test_recomputation_belongs_to_the_module_of_its_node() -> None:
    # Checkpointing runs the forward pass again, inside the backward node.
    builder = TraceBuilder()
    builder.annotation("nn.Module: block (Block)", 0, ms(4))
    builder.operator("CheckpointFunction", ms(1), ms(3), key="forward")
    builder.operator("CheckpointFunctionBackward", ms(5), ms(20), forward="forward")
    builder.annotation("nn.Module: block.mlp (Linear)", ms(6), ms(10))
    builder.operator("aten::addmm", ms(7), ms(8))
    builder.operator("aten::mm", ms(12), ms(14))
    trace = builder.build()
    found = origins_of(trace)
    assert found.module_of(row_of(trace, "aten::addmm")) == "block.mlp (Linear)"
    assert found.node[row_of(trace, "aten::addmm")] == -1
    assert found.module_of(row_of(trace, "aten::mm")) == "block (Block)"


def test_nodes_without_a_forward_operator_belong_to_the_module_whose_backward_began() -> None:
    builder = TraceBuilder()
    builder.annotation("nn.Module: net (Net)", 0, ms(2))  # known by its forward pass
    marks = {
        5: "nn.Module backward: net (Net)",
        9: "nn.Module backward: net.head (Linear)",
        13: "nn.Module backward done: net.head (Linear)",
        17: "nn.Module backward done: net (Net)",
    }
    for place, mark in marks.items():
        builder.operator(f"{NODE}X{place}", ms(place), ms(place + 2), thread="autograd")
        builder.annotation(mark, ms(place + 0.5), ms(place + 0.6), thread="autograd")
    builder.operator(f"{NODE}Y", ms(11), ms(12), thread="autograd")
    builder.operator(f"{NODE}early", ms(3), ms(4), thread="autograd")
    builder.operator("aten::mm", ms(11.2), ms(11.8), thread="autograd")
    trace = builder.build()
    found = origins_of(trace)
    wanted = {
        "early": None,
        "X5": "net (Net)",
        "X9": "net.head (Linear)",
        "Y": "net.head (Linear)",
        "X13": "net (Net)",  # the end of the head's backward pass belongs to its owner
        "X17": None,
    }
    for name, module in wanted.items():
        assert found.module_of(row_of(trace, NODE + name)) == module, name
    assert found.module_of(row_of(trace, "aten::mm")) == "net.head (Linear)"


def test_node_whose_sequence_number_only_its_function_has() -> None:
    # PyTorch 2.13 leaves the number out of the engine's event where a hook ran before the function.
    builder = TraceBuilder()
    builder.annotation("nn.Module: fc (Linear)", 0, ms(2))
    builder.operator("aten::addmm", ms(0.5), ms(1), key="forward")
    builder.operator(f"{NODE}AddmmBackward0", ms(4), ms(9), launches=False)
    builder.annotation("nn.Module backward: net (Net)", ms(5), ms(5.1))
    builder.operator("AddmmBackward0", ms(6), ms(8), forward="forward")
    trace = builder.build()
    found = origins_of(trace)
    for name in ("AddmmBackward0", f"{NODE}AddmmBackward0"):
        assert found.module_of(row_of(trace, name)) == "fc (Linear)"


def test_recorded_call_stack_of_an_operator_names_the_line() -> None:
    builder = TraceBuilder()
    builder.operator("aten::gather", 0, ms(1), frame="model.py(9): forward", key="forward")
    builder.operator("GatherBackward0", ms(2), ms(3), forward="forward")
    trace = builder.build()
    found = origins_of(trace)
    assert found.line_of(row_of(trace, "GatherBackward0")) == "model.py(9): forward"
    assert found.module_of(row_of(trace, "GatherBackward0")) is None


def test_an_operator_without_a_stack_keeps_the_line_of_the_frames_around_it() -> None:
    builder = TraceBuilder()
    framed(builder, "net.py(7): forward", 0, 10)
    builder.operator("aten::mm", ms(1), ms(3), frame="layers.py(3): project")
    builder.operator("aten::relu", ms(4), ms(5))
    trace = builder.build()
    found = origins_of(trace)
    assert found.line_of(row_of(trace, "aten::mm")) == "layers.py(3): project"
    assert found.line_of(row_of(trace, "aten::relu")) == "net.py:7 forward"
