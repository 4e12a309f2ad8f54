"""The operators view: own time by operator, module and source line."""

from __future__ import annotations

from tb_perfadvisor.report.views.operators import MAX_ROWS, OperatorsView, make_operators_view
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.testing import TraceBuilder, draw, ms, run_of, us
from tb_perfadvisor.trace import EventKind, KernelFamily

FRAME = "train.py(12): clip"


def view_of(builder: TraceBuilder) -> OperatorsView:
    view = make_operators_view(Signals(run_of(builder.build())))
    assert view is not None
    return view


def norms(calls: int = 150) -> TraceBuilder:
    """Two steps of 10 ms, each with a loop of short norms and one product of 2 ms."""
    builder = TraceBuilder()
    for step in (0, 1):
        begin = step * ms(10)
        builder.step(step, begin, begin + ms(10))
        builder.host(EventKind.PYTHON, FRAME, begin, begin + ms(6))
        for call in range(calls):
            at = begin + call * us(40)
            builder.operator("aten::norm", at, at + us(30))
            builder.operator("aten::linalg_vector_norm", at + us(5), at + us(25))
        builder.operator("aten::mm", begin + ms(7), begin + ms(9))
    return builder


def test_a_loop_of_short_calls_shows_with_its_line() -> None:
    view = view_of(norms())
    rows = {row.operator: row for row in view.by_operator.rows}
    # Per step: 150 times 30 - 20 us around the inner operator, 150 times 20 us, and 2 ms.
    assert rows["aten::norm"].self_ns == 2 * 150 * us(10)
    assert rows["aten::linalg_vector_norm"].self_ns == 2 * 150 * us(20)
    assert rows["aten::mm"].self_ns == 2 * ms(2)
    assert [row.operator for row in view.by_operator.rows] == [
        "aten::linalg_vector_norm",
        "aten::mm",
        "aten::norm",
    ]
    assert view.self_ns == 2 * (150 * us(30) + ms(2))
    assert rows["aten::norm"].share == 1.5 / 6.5
    assert view.by_module is None
    assert view.by_line is not None
    by_line = {row.line: row for row in view.by_line.rows}
    assert (by_line["train.py:12 clip"].calls, by_line["train.py:12 clip"].self_ns) == (
        2 * 300,
        2 * 150 * us(30),
    )
    assert (by_line[None].calls, by_line[None].self_ns) == (2, 2 * ms(2))
    assert view.by_call_site is not None
    first = view.by_call_site.rows[0]
    assert (first.operator, first.line) == ("aten::linalg_vector_norm", "train.py:12 clip")


def test_the_longest_call_is_the_one_with_the_most_own_time() -> None:
    builder = TraceBuilder().step(0, 0, ms(10))
    builder.operator("aten::add", ms(1), ms(2)).operator("aten::add", ms(4), ms(7))
    builder.operator("aten::copy_", ms(4), ms(6) + us(500))
    (row,) = (row for row in view_of(builder).by_operator.rows if row.operator == "aten::add")
    # The second call takes 3 ms, but only 0.5 ms without the copy inside.
    assert (row.self_ns, row.longest_start_ns, row.longest_ns) == (us(1500), ms(1), ms(1))


def test_device_time_counts_for_the_operator_that_launched_it() -> None:
    builder = TraceBuilder().device("NVIDIA H100 80GB HBM3").step(0, 0, ms(4))
    builder.host(EventKind.PYTHON, "nn.Module: Linear_0", us(1), us(40))
    builder.operator("aten::linear", us(2), us(30)).operator("aten::addmm", us(4), us(24))
    builder.launch(us(10), us(15))
    builder.kernel("nvjet_tst_192x192_64x4_2x1_v_bz_coopB_TNN", us(30), us(530),
                   family=KernelFamily.MATMUL)  # fmt: skip
    view = view_of(builder)
    rows = {row.operator: row for row in view.by_operator.rows}
    assert (rows["aten::addmm"].device_ns, rows["aten::addmm"].self_ns) == (us(500), us(20))
    assert (rows["aten::linear"].device_ns, rows["aten::linear"].self_ns) == (0, us(8))
    assert view.by_module is not None
    (module,) = view.by_module.rows
    assert (module.module, module.calls, module.device_ns) == ("Linear_0", 2, us(500))


def test_without_a_device_its_time_is_unknown() -> None:
    assert {row.device_ns for row in view_of(norms(2)).by_operator.rows} == {None}


def test_operators_of_the_input_pipeline_are_left_out() -> None:
    builder = TraceBuilder().step(0, 0, ms(10))
    builder.host(EventKind.INPUT_WAIT, "enumerate(DataLoader)", ms(1), ms(5))
    builder.operator("aten::stack", ms(2), ms(4)).operator("aten::mm", ms(6), ms(9))
    view = view_of(builder)
    assert [row.operator for row in view.by_operator.rows] == ["aten::mm"]
    assert (view.calls, view.self_ns) == (1, ms(3))


def test_only_the_costliest_rows_are_listed() -> None:
    builder = TraceBuilder().step(0, 0, ms(10))
    for number in range(MAX_ROWS + 5):
        builder.operator(f"aten::op_{chr(97 + number % 26)}{number}", us(number * 20),
                         us(number * 20 + 10))  # fmt: skip
    builder.operator("aten::mm", ms(8), ms(9))
    table = view_of(builder).by_operator
    # 205 short operators and the product, of which 200 are listed.
    assert (table.rows[0].operator, len(table.rows), table.truncated) == ("aten::mm", 200, 6)


def test_no_view_without_operators() -> None:
    trace = draw("""
        cell 1ms
        step   |....|....|
        gpu 7  |.KKK|.KKK|
    """)
    assert make_operators_view(Signals(run_of(trace))) is None


def test_waiting_is_not_work() -> None:
    """A copy to the host that waits for the device: 8 of its 10 ms are the device's time."""
    builder = TraceBuilder().step(0, 0, ms(20))
    builder.operator("aten::item", 0, ms(11))
    builder.operator("aten::copy_", ms(1), ms(11)).synchronize(ms(2), ms(10))
    builder.operator("aten::mm", ms(12), ms(15))
    view = view_of(builder)
    rows = {row.operator: row for row in view.by_operator.rows}
    assert (rows["aten::copy_"].self_ns, rows["aten::copy_"].waiting_ns) == (ms(2), ms(8))
    # The wait belongs to the innermost operator around it.
    assert (rows["aten::item"].self_ns, rows["aten::item"].waiting_ns) == (ms(1), 0)
    assert (view.self_ns, view.waiting_ns) == (ms(6), ms(8))
    # Of the work, 3 of 6 ms are the product's. The copy comes first: its wait may be avoidable.
    assert rows["aten::mm"].share == 0.5
    assert next(row.operator for row in view.by_operator.rows) == "aten::copy_"
