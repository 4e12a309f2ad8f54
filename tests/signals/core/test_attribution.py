from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tb_perfadvisor.signals import Attribution, Cause, Signals
from tb_perfadvisor.signals.core.idle_gaps import LAUNCH_LATENCY_NS
from tb_perfadvisor.testing import TraceBuilder, draw, kernel, ms, run_of, us
from tb_perfadvisor.testing.symbols import host
from tb_perfadvisor.trace import EventKind, Precision, Trace
from tb_perfadvisor.trace.intervals import join, total_ns
from tests.support.night import examples

LEGEND = {
    "8": kernel("q", precision=Precision.BITS_8),
    "6": kernel("d", precision=Precision.BITS_64),
}


def attribution_of(trace: Trace) -> Attribution:
    return Signals(run_of(trace)).attribution


def totals_us(trace: Trace) -> dict[str, int]:
    """Microseconds of each cause, without causes that take no time."""
    attribution = attribution_of(trace)
    found = {cause.value: attribution.total_ns(cause) / 1000 for cause in Cause}
    return {cause: int(total) for cause, total in found.items() if total}


def drawn(text: str, **attributes: object) -> dict[str, int]:
    return totals_us(draw(text, legend=LEGEND, **attributes))  # type: ignore[arg-type]


def test_lowest_precision_takes_overlapping_compute() -> None:
    # Cell by cell: 8, 8, 16, 16, 32, 32, 64, 64 bits, unknown: the lower of two streams counts.
    assert drawn(
        """
        cell 1ms
        gpu 7 |KK.KKK66.|
        gpu 8 |88HH..k6k|
        """
    ) == {
        "compute-8": 2000,
        "compute-16": 2000,
        "compute-32": 2000,
        "compute-64": 2000,
        "compute-unknown": 1000,
    }


def test_compute_hides_communication_and_communication_hides_copies() -> None:
    assert drawn(
        """
        cell 1ms
        gpu 7  |KKK......|
        gpu 20 |..NNN....|
        gpu 30 |h...hhhmm|
        """
    ) == {"compute-32": 3000, "communication": 2000, "copies": 4000}


def test_derived_rows_and_device_waits_are_not_busy() -> None:
    assert drawn(
        """
        cell 1ms
        gpu 7         |K...K|
        gpu 20        |uuuuu|
        sync          |sssss|
        gpu 0 modules |MMMMM|
        gpu 0 scope   |SSSSS|
        """
    ) == {"compute-32": 2000, "unexplained": 3000}


@pytest.mark.parametrize(
    ("letter", "cause"),
    [
        ("D", Cause.INPUT),
        ("c", Cause.COMPILING),
        ("A", Cause.ALLOCATING),
        ("S", Cause.SYNCHRONIZATION),
        ("R", Cause.LAUNCHING),
        ("O", Cause.FRAMEWORK),
        ("C", Cause.FRAMEWORK),
        ("p", Cause.PYTHON),
        ("u", Cause.UNEXPLAINED),
        ("v", Cause.UNEXPLAINED),
        (".", Cause.UNEXPLAINED),
    ],
)
def test_idle_is_attributed_to_the_launching_thread(letter: str, cause: Cause) -> None:
    # The gap lasts three cells: two of the letter, and one of the launch. That one is launching
    # for its own millisecond; it ends with the gap, so that no latency is left.
    assert drawn(
        f"""
        cell 1ms
        main  |L{letter * 2}L..|
        gpu 7 |K...KK|
        """
    ) == {"compute-32": 3000, cause.value: 2000, "launching": 1000} | (
        {"launching": 3000} if cause is Cause.LAUNCHING else {}
    )


def test_first_state_in_order_takes_overlapping_time() -> None:
    # Nested from the outside in, six cells of gap: Python all along, an operator in it, ...
    assert drawn(
        """
        cell 1ms
        main  |Lpppppp......L.|
        main  |..OOOOO........|
        main  |...SSSS........|
        main  |....AAA........|
        main  |.....cc........|
        main  |......D........|
        gpu 7 |K.............K|
        """
    ) == {
        "compute-32": 2000,
        "python": 1000,
        "framework": 1000,
        "synchronization": 1000,
        "allocating": 1000,
        "compiling": 1000,
        "input": 1000,
        "launching": 1000,
        "unexplained": 6000,
    }


def test_idle_before_work_that_was_launched_earlier_is_queued() -> None:
    # Both launches precede the gap, so what the thread does meanwhile (fetching) is not its cause.
    trace = draw(
        """
        cell 1ms
        main  |LLDDDD|
        gpu 7 |.KK.KK|
        """,
        links={("gpu 7", 0): ("main", 0), ("gpu 7", 1): ("main", 0)},
    )
    assert totals_us(trace) == {"compute-32": 4000, "queued": 1000}
    assert attribution_of(trace).idle.is_queued.tolist() == [True]


def launch_then_wait(call_us: int, wait_us: int) -> Trace:
    """A gap of `call_us` + `wait_us`: a launch from its beginning on, then its kernel."""
    return (
        TraceBuilder()
        .launch(us(0), us(10), key="first")
        .kernel("a", us(10), us(100), launched_by="first")
        .launch(us(100), us(100 + call_us), key="second")
        .kernel("b", us(100 + call_us + wait_us), us(500), launched_by="second")
        .build()
    )


def test_idle_after_the_launch_latency_is_queued() -> None:
    assert LAUNCH_LATENCY_NS == 20_000
    # 40 us of call and 20 us of latency; the remaining 30 us of a gap of 90 us are queued.
    assert totals_us(launch_then_wait(40, 50)) == {
        "compute-unknown": 90 + 500 - 190,
        "launching": 60,
        "queued": 30,
    }
    # A kernel that starts within the latency leaves nothing queued.
    assert totals_us(launch_then_wait(40, 15)) == {
        "compute-unknown": 90 + 500 - 155,
        "launching": 55,
    }


def test_a_launch_call_explains_no_gap_before_its_own() -> None:
    # The call of `other` lasts from 5 to 95. In the gap from 10 to 40, `main` prepares the work
    # that comes next. In the gap from 70 to 100, what comes next waits for the call.
    trace = (
        TraceBuilder()
        .step(1, us(0), us(200))
        .launch(us(0), us(1), key="first")
        .kernel("a", us(1), us(10), launched_by="first")
        .launch(us(5), us(95), thread="other", key="last")
        .operator("aten::item", us(10), us(38), launches=False)
        .launch(us(38), us(39), key="second")
        .kernel("b", us(40), us(70), launched_by="second")
        .kernel("c", us(100), us(200), launched_by="last")
        .build()
    )
    assert totals_us(trace) == {
        "compute-unknown": 9 + 30 + 100,
        "framework": 28,
        "launching": 1 + 2 + 30,
    }


def test_idle_belongs_to_the_thread_that_launched_the_next_event() -> None:
    # `autograd` launches the second kernel: its compiling counts, the fetch of `other` does not.
    assert drawn(
        """
        cell 1ms
        step     |.......|
        main     |L......|
        other    |.DDDD..|
        autograd |.cc..L.|
        gpu 7    |K.....K|
        """
    ) == {"compute-32": 2000, "compiling": 2000, "unexplained": 2000, "launching": 1000}


def test_step_thread_is_used_if_the_launching_thread_is_silent() -> None:
    assert drawn(
        """
        cell 1ms
        step     |.......|
        main     |L.DD...|
        autograd |.cc..L.|
        gpu 7    |K.....K|
        """
    ) == {
        "compute-32": 2000,
        "input": 2000,  # input comes before compiling, on either thread
        "compiling": 1000,
        "unexplained": 1000,
        "launching": 1000,
    }


def test_step_thread_is_used_without_launch_records() -> None:
    trace = draw(
        """
        cell 1ms
        step   |.....|.....|
        main   |.DD..|.pp..|
        worker |.cccc|.cccc|
        gpu 7  |K..KK|K..KK|
        """
    )
    assert totals_us(trace) == {"compute-32": 6000, "input": 2000, "python": 2000}
    assert attribution_of(trace).idle.launch_row.tolist() == [-1, -1]


def test_tensorflow_input_is_found_on_any_thread() -> None:
    text = """
        cell 1ms
        step   |......|
        main   |L....L|
        pool   |.DDD..|
        gpu 7  |K....K|
    """
    busy = {"compute-32": 2000}
    assert drawn(text, framework="tensorflow") == busy | {"input": 3000, "unexplained": 1000}
    # In PyTorch, a loader thread works ahead of the step, so nobody waits for it here.
    assert drawn(text) == busy | {"unexplained": 4000}


def test_infeed_is_waiting_for_input() -> None:
    assert drawn(
        """
        cell 1ms
        tpu 0 |XXIIIYY.X|
        """
    ) == {"compute-16": 3000, "compute-32": 2000, "input": 3000, "unexplained": 1000}


def test_container_of_operations_is_not_busy() -> None:
    # A while loop over two ops with a gap of a millisecond between them: device time, but idle.
    assert drawn(
        """
        cell 1ms
        tpu 0 |YYYYY|
        tpu 0 |XX.XX|
        """
    ) == {"compute-16": 4000, "unexplained": 1000}


def test_between_steps_ranks_after_input() -> None:
    # The last optimizer work ends at 6; callbacks fetch nothing until 8; then comes a fetch.
    assert drawn(
        """
        cell 1ms
        step  |..........|..........|
        main  |DDoo.z.ppp|DDoo.z....|
        gpu 7 |..KKKK....|..KKKK....|
        """
    ) == {
        "compute-32": 2 * 4000,
        "input": 2 * 2000,
        "between-steps": 2 * 4000,
    }


def test_time_outside_the_step_events_of_keras_is_between_steps() -> None:
    builder = TraceBuilder("tensorflow")
    for number, begin in enumerate((ms(0), ms(10))):
        builder.step(number, begin, begin + ms(6))
        builder.kernel("gemm", begin, begin + ms(6), precision=Precision.BITS_16)
    # The window ends with the last marker: 16 ms, of which 4 lie between the two.
    assert totals_us(builder.build()) == {"compute-16": 12_000, "between-steps": 4_000}


def test_operators_of_the_step_thread_are_the_work_on_the_cpu() -> None:
    # Loading in another thread is not work of the step; a collective is communication.
    assert drawn(
        """
        cell 1ms
        step   |..........|
        main   |DDOOOOCCp.|
        main   |.O........|
        worker |OOOOOOOOOO|
        """
    ) == {
        "host-compute": 4000,
        "communication": 2000,
        "input": 2000,
        "python": 1000,
        "unexplained": 1000,
    }


def test_operators_traced_by_torch_compile_are_not_work() -> None:
    # 3 ms of 10 are compiling, 2 of which in operators on fake tensors.
    assert drawn(
        """
        cell 1ms
        step   |..........|
        main   |cccOOOOOOO|
        main   |OO........|
        """
    ) == {"compiling": 3000, "host-compute": 7000}


@pytest.mark.parametrize("framework", ["tensorflow", "jax"])
def test_tensorflow_and_jax_work_on_any_thread_on_the_cpu(framework: str) -> None:
    builder = TraceBuilder(framework)  # type: ignore[arg-type]
    builder.step(0, ms(0), ms(10))
    builder.operator("MatMul", ms(0), ms(3), thread="pool 1", launches=False)
    builder.operator("MatMul", ms(2), ms(5), thread="pool 2", launches=False)
    # An operator inside the input pipeline is not work of the step.
    builder.host(EventKind.INPUT_WORK, "Iterator::Map", ms(5), ms(8), thread="pool 3")
    builder.operator("DecodeJpeg", ms(6), ms(7), thread="pool 3", launches=False)
    assert totals_us(builder.build()) == {"host-compute": 5000, "unexplained": 5000}


def test_a_step_waits_for_its_first_fetch_whatever_runs_beside_it() -> None:
    # TensorFlow's executor draws the dropout mask on another thread while it fetches: without the
    # fetch, it would do so beside the product. XProf: 6 of 10 ms are input.
    assert drawn(
        """
        cell 1ms
        step   |..........|
        fetch  |DDDDDD....|
        pool 1 |OOO.......|
        pool 2 |......OOOO|
        """,
        framework="tensorflow",
    ) == {"host-compute": 4000, "input": 6000}


def test_a_fetch_that_began_before_the_step_is_not_its_first() -> None:
    # It loads for an earlier step. Only what nothing runs beside, from 12 to 13, is waiting.
    builder = TraceBuilder("tensorflow")
    builder.step(0, ms(10), ms(20))
    fetch = "IteratorGetNextOp::DoCompute"
    builder.host(EventKind.INPUT_WAIT, fetch, ms(5), ms(13), thread="pool 1")
    builder.operator("MatMul", ms(10), ms(12), thread="pool 2", launches=False)
    builder.operator("MatMul", ms(13), ms(20), thread="pool 2", launches=False)
    assert totals_us(builder.build()) == {"host-compute": 9000, "input": 1000}


def test_work_that_outlasts_the_fetch_is_work() -> None:
    # Only the first two milliseconds, before the long operator begins, can be waiting.
    assert drawn(
        """
        cell 1ms
        step   |..........|
        fetch  |DDDDDD....|
        pool 1 |..OOOOOOOO|
        """,
        framework="tensorflow",
    ) == {"host-compute": 8000, "input": 2000}


def test_a_later_fetch_overlaps_the_work_before_it() -> None:
    # The second fetch runs beside operators of the first batch, and holds up only its last cell.
    assert drawn(
        """
        cell 1ms
        step   |..........|
        fetch  |D..DDD....|
        pool 1 |.OOOO.OOOO|
        """,
        framework="tensorflow",
    ) == {"host-compute": 8000, "input": 2000}


def test_waiting_for_a_jax_program_is_its_work() -> None:
    # An operation covers 2 of 10 ms; the program runs for 8, of which 1 is in a collective.
    builder = TraceBuilder("jax")
    builder.step(0, ms(0), ms(10))
    wait = "ThunkExecutor::Execute (wait for completion)"
    builder.annotation(wait, ms(1), ms(9), thread="client")
    builder.operator("dot.1", ms(1), ms(3), thread="pool 1", launches=False)
    builder.host(EventKind.HOST_COLLECTIVE, "all-reduce", ms(4), ms(5), thread="pool 1")
    assert totals_us(builder.build()) == {
        "host-compute": 7000,
        "communication": 1000,
        "unexplained": 2000,
    }


def test_windows_without_steps_are_attributed() -> None:
    trace = draw(
        """
        cell 1ms
        main  |LDDL..|
        gpu 7 |K...KK|
        """
    )
    attribution = attribution_of(trace)
    assert attribution.window_ns == ms(6)
    assert attribution.step_total_ns[Cause.INPUT].tolist() == []
    assert attribution.share(Cause.INPUT) == pytest.approx(2 / 6)


def test_empty_trace_has_no_shares() -> None:
    attribution = attribution_of(TraceBuilder().build())
    assert attribution.window_ns == 0
    assert attribution.share(Cause.INPUT) is None


def test_device_time_is_clipped_to_the_steps_and_counted_by_step() -> None:
    # The second kernel has one cell in each step.
    attribution = attribution_of(
        draw(
            """
            cell 1ms
            step  |....|....|
            main  |oo..|o...|
            gpu 7 |.KK'|-'--|
            """
        )
    )
    compute = attribution.step_total_ns[Cause.COMPUTE_32].tolist()
    assert compute == [ms(3), ms(4)]


def test_every_cause_has_a_label_and_colors() -> None:
    assert len({cause.label for cause in Cause}) == len(Cause)
    assert all(
        re.fullmatch("#[0-9a-f]{6}", c) for cause in Cause for c in (cause.light, cause.dark)
    )


HOST = "....DDoOLSARCcpuBzZ"
DEVICE = "....KKHk8NNhqm"


def lane(letters: str) -> st.SearchStrategy[str]:
    cells = st.text(st.sampled_from(letters), min_size=6, max_size=6)
    return st.lists(cells, min_size=3, max_size=3).map("|".join)


@examples(80)
@given(
    main=lane(HOST),
    other=lane(HOST),
    compute=lane(DEVICE),
    wire=lane(DEVICE + "."),
    framework=st.sampled_from(["pytorch", "tensorflow", "jax"]),
    has_steps=st.booleans(),
    has_device=st.booleans(),
)
def test_every_nanosecond_has_exactly_one_cause(
    *,
    main: str,
    other: str,
    compute: str,
    wire: str,
    framework: str,
    has_steps: bool,
    has_device: bool,
) -> None:
    device = f"gpu 7 |{compute}|\ngpu 20 |{wire}|" if has_device else ""
    trace = draw(
        f"cell 1ms\nstep |......|......|......|\nmain |{main}|\nother |{other}|\n{device}",
        legend=LEGEND,
        framework=framework,  # type: ignore[arg-type]
        step_line=has_steps,
    )
    attribution = attribution_of(trace)
    parts = [part for part in attribution.intervals.values() if len(part)]
    assert sum(map(total_ns, parts)) == attribution.window_ns
    if parts:
        # Parts that cover the window and sum to its length cannot overlap.
        (whole,) = join(*parts).tolist()
        assert whole == [attribution.window_start_ns, attribution.window_end_ns]
    steps = Signals(run_of(trace)).steps
    by_step = np.sum(list(attribution.step_total_ns.values()), axis=0)
    assert by_step.tolist() == steps.duration_ns.tolist()


@pytest.mark.parametrize(
    "name",
    [
        "$pool.py:767 get",
        "$connection.py:246 recv",
        "$<unknown> acquire",
        "queue.py(171): get",
        "<built-in method acquire of _thread.lock object at 0x7f0a2c3b5e40>",
    ],
)
def test_a_call_that_waits_for_another_process_waits_for_input(name: str) -> None:
    trace = draw(
        """
        cell 1ms
        step |.........|.........|
        main |wwwppoooo|wwwppoooo|
        """,
        legend={
            "w": host(name, EventKind.PYTHON),
            "p": host("$slow.py:9 f", EventKind.PYTHON),
            "o": host("dot.3", EventKind.OPERATOR),
        },
        framework="jax",
    )
    assert totals_us(trace) == {"input": 6000, "host-compute": 8000, "python": 4000}


def test_the_start_of_a_thread_is_no_wait_for_input() -> None:
    trace = draw(
        """
        cell 1ms
        step |.........|.........|
        main |sssppoooo|sssppoooo|
        main |wwwppoooo|wwwppoooo|
        """,
        legend={
            "s": host("$threading.py:938 start", EventKind.PYTHON),
            "w": host("$threading.py:604 wait", EventKind.PYTHON),
            "p": host("$slow.py:9 f", EventKind.PYTHON),
            "o": host("dot.3", EventKind.OPERATOR),
        },
        framework="jax",
    )
    assert "input" not in totals_us(trace)
