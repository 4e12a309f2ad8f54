"""Which views a report says it has: the tab shows their pages."""

from __future__ import annotations

from pathlib import Path

from tb_perfadvisor import analyze
from tb_perfadvisor.report.views import VIEWS, available_views, make_views
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.testing import draw, run_of
from tb_perfadvisor.trace import Run
from tests.support.compile_logs import example_log
from tests.support.memory_snapshots import Snapshot
from tests.support.server_trace import Served, server_trace

EVENTS = ["steps", "kernels", "operators", "calls"]
TRAINING = """
    cell 1ms
    step   |......|......|
    main   |oo....|oo....|
    gpu 7  |.KKKKK|.KKKKK|
"""


def names(run: Run) -> list[str]:
    return available_views(Signals(run))


def test_a_program_on_one_device() -> None:
    assert names(run_of(draw(TRAINING))) == EVENTS


def test_several_ranks() -> None:
    ranks = [draw(TRAINING, rank=rank, world_size=2) for rank in range(2)]
    assert names(run_of(*ranks)) == [*EVENTS, "ranks"]


def test_ranks_that_communicate() -> None:
    text = TRAINING + "    gpu 8  |..NNN.|..NNN.|\n"
    ranks = [draw(text, rank=rank, world_size=2) for rank in range(2)]
    assert names(run_of(*ranks)) == [*EVENTS, "ranks", "parallelism"]


WAITING = """
    cell 1ms
    step   |........|........|
    main   |DDDDoo..|DDDDoo..|
    gpu 7  |.....KKK|.....KKK|
"""


def test_a_step_that_waits_for_input() -> None:
    assert names(run_of(draw(WAITING))) == ["steps", "input", "kernels", "operators", "calls"]


def waiting_for(input_cells: int) -> Run:
    """Two steps of 200 ms, which begin with a wait for input."""
    work = 200 - input_cells
    return run_of(
        draw(
            f"""
            cell 1ms
            step   |{"." * 200}|{"." * 200}|
            main   |{("D" * input_cells).ljust(200, "o")}|{("D" * input_cells).ljust(200, "o")}|
            gpu 7  |{"." * input_cells}{"K" * work}|{"." * input_cells}{"K" * work}|
            """
        )
    )


def test_a_wait_below_a_hundredth_of_the_step_has_no_page() -> None:
    assert "input" not in names(waiting_for(1))  # 0.5 %
    assert "input" in names(waiting_for(3))  # 1.5 %


def test_a_single_step_does_not_change_over_time() -> None:
    assert "steps" not in names(
        run_of(draw("cell 1ms\nstep   |......|\nmain   |oo....|\ngpu 7  |.KKKKK|"))
    )


def test_a_recording_without_steps_or_a_device() -> None:
    assert names(run_of(draw("cell 1ms\nmain   |ooo.o.oo..|"))) == ["operators", "calls"]


def test_an_inference_server() -> None:
    served = run_of(server_trace([Served(decodes=8)] * 4))
    assert names(served) == ["steps", "kernels", "calls", "serving"]


def test_a_memory_snapshot_alone() -> None:
    made = Snapshot()
    made.allocate(made.segment(1 << 30), 1 << 20)
    assert names(run_of(made.trace())) == ["snapshot"]


def test_a_log_of_torch_compile_alone(tmp_path: Path) -> None:
    path = tmp_path / "dedicated_log_torch_trace_x.log"
    path.write_bytes(example_log())
    assert analyze(path).available_views == []


def test_names_and_views_are_the_same() -> None:
    assert list(make_views(Signals(run_of(draw(TRAINING))))) == list(VIEWS)
