from __future__ import annotations

from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.core.placement import Placement
from tb_perfadvisor.testing import TraceBuilder, draw, ms, operator, run_of
from tb_perfadvisor.testing.symbols import host
from tb_perfadvisor.trace import EventKind, Trace


def placement_of(trace: Trace) -> Placement:
    return Signals(run_of(trace)).placement


def test_operator_with_a_launch_is_on_the_device() -> None:
    placement = placement_of(
        draw(
            """
            cell 1ms
            step  |..........|
            main  |ooOOO.oo..|
            gpu 7 |.KK...KKKK|
            """
        )
    )
    # Two operators launched kernels of 2 and 4 ms; one computed for 3 ms without a launch.
    assert (placement.device_count, placement.host_count) == (2, 1)
    assert (placement.device_ns, placement.host_ns) == (ms(6), ms(3))
    assert placement.share_by_count == 2 / 3
    assert placement.share_by_time == 6 / 9


def test_an_operator_with_a_launch_inside_is_on_the_device() -> None:
    trace = draw(
        """
        cell 1ms
        step  |.....|
        main  |OOOO.|
        main  |.oo..|
        gpu 7 |..KKK|
        """
    )
    placement = placement_of(trace)
    assert (placement.device_count, placement.host_count) == (1, 0)


def test_views_and_queries_are_not_placed() -> None:
    trace = draw(
        """
        cell 1ms
        step  |......|
        main  |vwxyzo|
        gpu 7 |.....K|
        """,
        legend={
            "z": operator("prims::add", launches=False),
            "v": operator("aten::view", launches=False),
            "w": operator("aten::empty", launches=False),
            "x": operator("aten::item", launches=False),
            "y": operator("mylib::unheard_of", launches=False),
        },
    )
    assert placement_of(trace).host_count == 0


def test_only_the_outermost_computing_operator_counts() -> None:
    builder = TraceBuilder().step(0, 0, ms(10))
    builder.operator("aten::linear", ms(1), ms(5), launches=False)
    builder.operator("aten::addmm", ms(2), ms(4), launches=False)
    builder.operator("aten::relu", ms(5), ms(6), key="relu")
    builder.kernel("relu", ms(6), ms(7), launched_by="relu")
    placement = placement_of(builder.build())
    assert (placement.host_count, placement.host_ns) == (1, ms(4))


def test_operators_are_not_placed_without_launches() -> None:
    # As on devices with their own launching thread: `mm` may have run there.
    builder = TraceBuilder().step(0, 0, ms(10))
    builder.operator("aten::mm", ms(2), ms(4), launches=False)
    builder.kernel("gemm", ms(5), ms(6), launched_by="")
    placement = placement_of(builder.build())
    assert (placement.host_count, placement.share_by_count) == (0, None)


def test_operators_of_the_input_pipeline_are_not_part_of_the_step() -> None:
    trace = draw(
        """
        cell 1ms
        step  |......|
        main  |DDDo..|
        main  |.O....|
        gpu 7 |....KK|
        """
    )
    assert placement_of(trace).host_count == 0


def test_without_operators_there_is_no_share() -> None:
    placement = placement_of(TraceBuilder().kernel("gemm", 0, ms(1)).build())
    assert (placement.share_by_count, placement.share_by_time) == (None, None)


def test_module_around_its_operations_is_not_counted() -> None:
    placement = placement_of(
        draw(
            """
            cell 1ms
            step          |..........|
            main          |B.........|
            tpu 0         |.XX.YY....|
            tpu 0 modules |.MMMMM....|
            """,
            links={("tpu 0 modules", 0): ("main", 0)},
        )
    )
    # The module of 5 ms has the launch that its operations of 2 and 2 ms have.
    assert placement.device_ns == ms(4)


FAKE = "torch/_subclasses/fake_tensor.py(1423): dispatch"
LEGEND = {
    "W": operator("aten::mm", launches=False),
    "m": operator("aten::mm", launches=False),
    "M": operator("aten::mm"),
    "p": host(FAKE, EventKind.PYTHON),
}


def test_dtensor_propagates_shapes_before_it_computes() -> None:
    # DTensor's aten::mm holds two: one that runs a third on tensors without data, and one that
    # launches. As in a recording of Llama on two RTX 4090.
    trace = draw(
        """
        cell 1ms
        step  |........|
        main  |WWWWW...|
        main  |mmm.M...|
        main  |.m......|
        gpu 7 |.....KKK|
        """,
        legend=LEGEND,
    )
    placement = placement_of(trace)
    assert (placement.device_count, placement.host_count) == (1, 0)


def test_an_operator_inside_another_of_its_name_that_launches_nothing_computes() -> None:
    trace = draw(
        """
        cell 1ms
        step  |........|
        main  |WWWWWo..|
        main  |mmm.....|
        gpu 7 |......KK|
        """,
        legend=LEGEND,
    )
    placement = placement_of(trace)
    assert (placement.host_count, placement.host_ns) == (1, ms(5))


def test_a_compiler_traces_operators_without_data() -> None:
    trace = draw(
        """
        cell 1ms
        step  |............|
        main  |ccccppppoWWW|
        main  |.mm..mm.....|
        gpu 7 |.........KKK|
        """,
        legend=LEGEND,
    )
    placement = placement_of(trace)
    assert (placement.host_count, placement.host_ns) == (1, ms(3))
