from __future__ import annotations

import io

from msgspec.structs import replace

from tb_perfadvisor.ingest.compile_log.reader import read_compile_log
from tb_perfadvisor.machine.facts import Facts, Line, Lines
from tb_perfadvisor.rules.finding import Table
from tb_perfadvisor.rules.launch.compilation import Recompilation
from tb_perfadvisor.rules.launch.host_work import PythonOverhead
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.testing import TraceBuilder, check_rule, draw, find, run_of
from tb_perfadvisor.testing.builder import ms
from tb_perfadvisor.testing.symbols import Symbol
from tb_perfadvisor.trace import EventKind, Source, Trace
from tests.support.compile_logs import artifact, compiled, example_log, ids, record

SLOW = """
    cell 1ms
    step   |..........|..........|..........|
    main   |ccccccco..|ccccccco..|ccccccco..|
    gpu 7  |.......KKK|.......KKK|.......KKK|
"""
FIXED = """
    cell 1ms
    step   |...|...|...|
    main   |o..|o..|o..|
    gpu 7  |KKK|KKK|KKK|
"""


def test_saves_what_the_fix_saves() -> None:
    checked = check_rule(Recompilation, slow=SLOW, fixed=FIXED, saves="7ms")
    assert checked.findings[0].summary.endswith("3 of 3 steps compile.")


def test_a_first_step_that_compiles_is_warm_up() -> None:
    trace = """
        cell 1ms
        step   |..........|...|...|...|
        main   |ccccccco..|o..|o..|o..|
        gpu 7  |.......KKK|KKK|KKK|KKK|
    """
    assert find(Recompilation, trace) == ()


def jitted(*compiled: int, steps: int = 6, function: str = "step") -> Trace:
    """Calls of a jitted function: 1 ms, or 50 if the step is among those that compile."""
    builder, at = TraceBuilder("jax"), 0.0
    for number in range(steps):
        takes = 50 if number in compiled else 1
        kind = EventKind.COMPILE if number in compiled else EventKind.ANNOTATION
        builder.step(number, ms(at), ms(at + takes + 5))
        builder.host(kind, f"PjitFunction({function})", ms(at), ms(at + takes))
        thunk = Symbol(EventKind.OPERATOR, "dot.1", hlo={"module": f"jit_{function}(7)"})
        builder.add(thunk, ms(at + takes), ms(at + takes + 5), thread="pool")
        at += takes + 5
    return builder.build()


def test_a_function_that_compiles_once_is_warm_up() -> None:
    assert find(Recompilation, jitted(0)) == ()


def test_a_function_that_compiles_again_is_no_warm_up() -> None:
    (finding,) = find(Recompilation, jitted(0, 3)) or ()
    assert finding.saving is not None
    assert finding.summary.endswith("2 of 6 steps compile.")
    assert finding.saving.expected_ns == ms(100)


def test_the_line_that_waits_for_compilations_is_named() -> None:
    line = Line("fit.py", 57, 0.9, "fit", "solver.run", None, "compiling", 30)
    trace = replace(jitted(0, 3), facts=Facts(lines=Lines(10.0, 200, (line,))))
    (finding,) = find(Recompilation, trace) or ()
    assert finding.instance == "2 of 6 steps compile step in fit.py:57 fit"


def test_another_function_that_compiles_later_leaves_the_first_step_warm_up() -> None:
    builder, at = TraceBuilder("jax"), 0
    for number, (function, takes) in enumerate(
        [("step", 50), ("step", 1), ("step", 1), ("evaluate", 20), ("step", 1), ("step", 1)]
    ):
        builder.step(number, ms(at), ms(at + takes + 5))
        kind = EventKind.COMPILE if takes > 1 else EventKind.ANNOTATION
        builder.host(kind, f"PjitFunction({function})", ms(at), ms(at + takes))
        builder.operator("dot.1", ms(at + takes), ms(at + takes + 5), thread="pool")
        at += takes + 5
    (finding,) = find(Recompilation, builder.build()) or ()
    assert finding.summary.endswith("1 of 5 steps compile.")


def test_python_around_a_compilation_is_not_python_overhead() -> None:
    def steps(compiling_ms: float) -> Trace:
        builder = TraceBuilder("jax")
        for number in range(6):
            at = 30 * number
            builder.step(number, ms(at), ms(at + 30))
            builder.host(EventKind.PYTHON, "$train.py:12 step", ms(at), ms(at + 20))
            builder.host(
                EventKind.COMPILE, "PjitFunction(step)", ms(at + 5), ms(at + 5 + compiling_ms)
            )
            builder.operator("dot.1", ms(at + 20), ms(at + 30), thread="pool")
        return builder.build()

    assert find(PythonOverhead, steps(11)) == ()  # 9 ms of Python around them
    assert find(PythonOverhead, steps(9))  # 11 ms


def test_one_compilation_among_many_steps_does_not_tell_how_often() -> None:
    trace = """
        cell 1ms
        step   |...|..........|...|...|
        main   |o..|ccccccco..|o..|o..|
        gpu 7  |KKK|.......KKK|KKK|KKK|
    """
    (finding,) = find(Recompilation, trace) or ()
    assert finding.saving is not None
    assert (finding.saving.low_ns, finding.saving.high_ns) == (0, 7_000_000)
    assert finding.saving.is_unknown
    assert finding.title == "Find out whether more steps compile: 1 of 4 steps compile"


def test_just_below_and_just_above_the_limit() -> None:
    assert find(Recompilation, SLOW, settings={"minimum_share": 0.71}) == ()
    assert len(find(Recompilation, SLOW, settings={"minimum_share": 0.69}) or ()) == 1


def test_high_includes_python_of_the_steps_that_compile() -> None:
    # 4 ms of compiling and, only in those steps, 3 ms of Python.
    trace = """
        cell 1ms
        step   |..........|..........|..........|
        main   |pppcccco..|pppcccco..|pppcccco..|
        gpu 7  |.......KKK|.......KKK|.......KKK|
    """
    (finding,) = find(Recompilation, trace) or ()
    assert finding.saving is not None
    assert finding.saving.expected_ns == 12_000_000
    assert finding.saving.high_ns == 21_000_000


def test_on_the_cpu_excess_python_of_steps_that_compile_is_tracing() -> None:
    # Two steps compile for 4 ms each and spend 3 ms in Python; the others spend 1 ms there.
    trace = """
        cell 1ms
        step   |....|..........|....|..........|
        main   |OOOp|pppccccOOO|OOOp|pppccccOOO|
    """
    (finding,) = find(Recompilation, trace) or ()
    assert finding.saving is not None
    assert finding.saving.low_ns == 0  # only half of the steps compile
    assert finding.saving.expected_ns == 8_000_000 + 2 * (3_000_000 - 1_000_000)
    # High adds a fifth of the 6 ms that the two steps compute: a first run takes longer.
    assert finding.saving.outside_claims_ns == 1_200_000
    assert finding.saving.high_ns == 8_000_000 + 2 * 3_000_000 + 1_200_000


def test_the_first_run_saves_at_most_the_time_of_compiling() -> None:
    trace = """
        cell 1ms
        step   |....................|....................|
        main   |cooooooooooooooooooo|cooooooooooooooooooo|
    """
    (finding,) = find(Recompilation, trace, settings={"minimum_share": 0.02}) or ()
    assert finding.saving is not None
    assert finding.saving.outside_claims_ns == 2_000_000  # less than a fifth of 38 ms


def test_names_changing_shapes() -> None:
    # Names that PyTorch 2.13 records for a compiled training step.
    builder = TraceBuilder()
    for step, length in enumerate((34, 35, 36, 37)):
        at = ms(10 * step)
        builder.step(step, at, at + ms(10))
        builder.host(EventKind.COMPILE, "entire_frame_compile", at, at + ms(6))
        builder.operator(f"Torch-Compiled Region: 0/{step}", at + ms(6), at + ms(8), launches=False)
        shapes = [[64, 64], [length, 64]]
        builder.operator("CompiledFunction", at + ms(6.5), at + ms(7.5), shapes=shapes)
        builder.kernel("sgemm", at + ms(7.5), at + ms(10))
    (finding,) = find(Recompilation, builder.build()) or ()
    assert finding.summary.endswith(
        "steps compile; an input comes in 4 shapes (34 × 64, 35 × 64, 36 × 64, …)."
    )
    table = finding.evidence[-1]
    assert isinstance(table, Table)
    assert table.rows == (("0", "1", 4, "34 × 64, 35 × 64, 36 × 64, 37 × 64"),)


def test_a_log_alone_lists_what_was_compiled_again() -> None:
    source = Source(path="run/log", format="torch-compile-log")
    trace = read_compile_log(io.BytesIO(example_log()), source)
    (finding,) = find(Recompilation, trace) or ()
    assert finding.saving is None
    assert finding.title == "Compile each function once: 1 recompilation took 500 ms"
    assert "tensor 'x' size mismatch at index 0. expected 16, actual 17" in finding.summary
    assert "forward (project/train.py:9)" in finding.summary


def test_a_function_that_runs_uncompiled_is_named_although_no_step_compiles() -> None:
    limit = {"fail_type": "Unsupported", "fail_reason": "Dynamo recompile limit exceeded"}
    data = (
        compiled("0/0", "f", 3, duration_us=1)
        + artifact("recompile_reasons", "0/8", "0/7: n == 7")
        + record({"compilation_metrics": limit, **ids("0/8")})
    )
    source = Source(path="run/log", format="torch-compile-log", rank=0)
    log = read_compile_log(io.BytesIO(data), source).compile_log
    assert log is not None
    steady = draw(FIXED, framework="pytorch", rank=0)
    run = replace(run_of(steady), compile_logs=(log,))
    (finding,) = Recompilation().check(Signals(run))
    assert "1 function reached the limit of recompilations" in finding.summary
    assert finding.severity == "medium"
