from __future__ import annotations

from tb_perfadvisor.signals import Signals
from tb_perfadvisor.testing import TraceBuilder, draw, ms, run_of
from tb_perfadvisor.trace import EventKind, Trace


def by_name(trace: Trace) -> dict[str, tuple[int, int, int]]:
    """Count, own time and device time of each operator, in ms."""
    totals = Signals(run_of(trace)).operators
    found: dict[str, list[int]] = {}
    for row in range(len(totals)):
        entry = found.setdefault(trace.strings[totals.name[row]], [0, 0, 0])
        entry[0] += int(totals.count[row])
        entry[1] += int(totals.self_ns[row]) // ms(1)
        entry[2] += int(totals.device_ns[row]) // ms(1)
    return {name: (count, self_ns, device) for name, (count, self_ns, device) in found.items()}


def test_self_time_excludes_nested_events() -> None:
    builder = TraceBuilder().step(0, 0, ms(20))
    builder.operator("aten::linear", ms(0), ms(10), launches=False)
    builder.operator("aten::addmm", ms(2), ms(9), launches=False)
    builder.operator("aten::copy_", ms(3), ms(5), launches=False)
    builder.operator("aten::linear", ms(12), ms(13), launches=False)
    # linear: 10 - 7 inside it, and 1; addmm: 7 - 2.
    assert by_name(builder.build()) == {
        "aten::linear": (2, 4, 0),
        "aten::addmm": (1, 5, 0),
        "aten::copy_": (1, 2, 0),
    }


def test_operators_beside_each_other_keep_their_time() -> None:
    builder = TraceBuilder()
    for place, name in enumerate(("aten::mm", "aten::relu", "aten::add")):
        builder.operator(name, ms(10 * place), ms(10 * place + 10), launches=False)
    found = by_name(builder.build())
    assert found == dict.fromkeys(("aten::mm", "aten::relu", "aten::add"), (1, 10, 0))


def test_device_time_goes_to_the_innermost_operator() -> None:
    builder = TraceBuilder().step(0, 0, ms(20))
    builder.operator("aten::linear", ms(0), ms(4), launches=False)
    builder.operator("aten::addmm", ms(1), ms(3))
    builder.kernel("gemm", ms(2), ms(7)).kernel("splitk_reduce", ms(7), ms(9))
    found = by_name(builder.build())
    assert found == {"aten::linear": (1, 2, 0), "aten::addmm": (1, 2, 7)}


def test_device_time_without_an_operator_is_left_out() -> None:
    trace = draw(
        """
        cell 1ms
        step  |......|
        main  |L.oo..|
        gpu 7 |.KKKK.|
        """,
        links={("gpu 7", 0): ("main", 0)},
    )
    # The kernel was launched by a call outside any operator.
    assert by_name(trace) == {"aten::mm": (1, 2, 0)}


def test_operators_of_the_input_pipeline_are_input() -> None:
    builder = TraceBuilder().step(0, 0, ms(10))
    builder.host(EventKind.INPUT_WAIT, "enumerate(DataLoader)", ms(0), ms(5))
    builder.annotation("collate", ms(1), ms(5))
    builder.operator("aten::stack", ms(2), ms(4), launches=False)
    builder.operator("aten::mm", ms(5), ms(8), launches=False)
    assert by_name(builder.build()) == {"aten::mm": (1, 3, 0)}


def test_only_events_in_the_used_window_count() -> None:
    builder = TraceBuilder().step(0, ms(10), ms(20))
    builder.operator("aten::early", ms(2), ms(4)).kernel("gemm", ms(8), ms(13))
    builder.operator("aten::inside", ms(14), ms(16)).kernel("gemm", ms(16), ms(25))
    builder.operator("aten::late", ms(21), ms(22), launches=False)
    # The step owns what it launched, and ends with it.
    assert by_name(builder.build()) == {"aten::inside": (1, 2, 9)}


def test_shapes_and_types_are_separate_rows() -> None:
    builder = TraceBuilder().step(0, 0, ms(10))
    for at, rows, dtype in ((0, 8, "float"), (1, 8, "float"), (2, 16, "float"), (3, 8, "double")):
        builder.operator(
            "aten::mm", ms(at), ms(at + 1), shapes=[[rows, 4], [4, 2]], dtypes=[dtype] * 2
        )
    trace = builder.build()
    totals = Signals(run_of(trace)).operators
    found = {
        (trace.text(int(shapes)), trace.text(int(dtypes))): int(count)
        for shapes, dtypes, count in zip(totals.shapes, totals.dtypes, totals.count, strict=True)
    }
    assert found == {
        ("[[8,4],[4,2]]", "float;float"): 2,
        ("[[16,4],[4,2]]", "float;float"): 1,
        ("[[8,4],[4,2]]", "double;double"): 1,
    }


def test_a_trace_without_operators() -> None:
    totals = Signals(run_of(draw("cell 1ms\nstep  |...|\ngpu 7 |.K.|"))).operators
    assert len(totals) == 0
