from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from tb_perfadvisor import analyze
from tb_perfadvisor.contract import model
from tb_perfadvisor.engine.analyze import analyze_run
from tb_perfadvisor.engine.config import Config
from tb_perfadvisor.machine.facts import Activity, Facts, Line, Lines, Load
from tb_perfadvisor.report.build import build_report
from tb_perfadvisor.rules.evidence.host import host_code_table
from tb_perfadvisor.rules.finding import Column, Table
from tb_perfadvisor.rules.launch.host_work import PythonOverhead
from tb_perfadvisor.rules.launch.launching import LaunchBound
from tb_perfadvisor.signals.host.call_tree import SelfTime
from tb_perfadvisor.testing import TraceBuilder, check_rule, draw, find, ms, run_of
from tb_perfadvisor.testing.symbols import host
from tb_perfadvisor.trace import EventKind, Trace

SLOW = """
    cell 1ms
    step   |..........|..........|..........|
    main   |opppppppo.|opppppppo.|opppppppo.|
    gpu 7  |K.......KK|K.......KK|K.......KK|
"""
FIXED = """
    cell 1ms
    step   |...|...|...|
    main   |oo.|oo.|oo.|
    gpu 7  |KKK|KKK|KKK|
"""


def test_saves_what_the_fix_saves() -> None:
    checked = check_rule(PythonOverhead, slow=SLOW, fixed=FIXED, saves="7ms")
    assert "_wrapped_call_impl" in checked.findings[0].summary


def test_launch_bound_does_not_count_a_long_stretch() -> None:
    assert find(LaunchBound, SLOW) == ()


def test_framework_code_that_launches_nothing_counts() -> None:
    # The operator runs for 7 ms and launches at its end; 7 of its 8 ms are idle.
    trace = """
        cell 1ms
        step   |..........|..........|..........|
        main   |oOOOOOOOo.|oOOOOOOOo.|oOOOOOOOo.|
        gpu 7  |K.......KK|K.......KK|K.......KK|
    """
    (finding,) = find(PythonOverhead, trace) or ()
    assert finding.saving is not None
    assert finding.saving.expected_ns == 21_000_000
    assert "aten::embedding_bag" in finding.summary


def test_half_of_an_unrecorded_stretch_is_expected() -> None:
    trace = """
        cell 1ms
        step   |..........|..........|..........|
        main   |o.......o.|o.......o.|o.......o.|
        gpu 7  |K.......KK|K.......KK|K.......KK|
    """
    (finding,) = find(PythonOverhead, trace) or ()
    saving = finding.saving
    assert saving is not None
    assert saving.basis == "heuristic"
    assert (saving.low_ns, saving.expected_ns, saving.high_ns) == (0, 10_500_000, 21_000_000)
    # Nobody can act on it before it is known what the host does.
    assert finding.title == "Find out what the host does in the long gaps"
    assert finding.remedies[0].change == "record-host-code"
    assert "nothing in the profile tells" in finding.summary


@pytest.mark.parametrize(("annotated", "is_named"), [("uuuuu", True), ("uuu..", False)])
def test_an_annotation_of_the_program_names_a_stretch(annotated: str, *, is_named: bool) -> None:
    # 5 or 3 of 7 ms of idle time.
    lane = f"|..{annotated}...|"
    trace = f"""
        cell 1ms
        step   |..........|..........|..........|
        main   |o.......o.|o.......o.|o.......o.|
        main   {lane}{lane[1:]}{lane[1:]}
        gpu 7  |K.......KK|K.......KK|K.......KK|
    """
    (finding,) = find(PythonOverhead, trace) or ()
    assert (finding.title == "") == is_named
    assert (finding.remedies[0].change != "record-host-code") == is_named


def test_looks_over_the_whole_run_tell_what_no_event_names() -> None:
    lines = Lines(
        40.0,
        1000,
        (
            Line("train.py", 9, 0.5, "", "torch._tensor.backward"),
            Line("train.py", 12, 0.3, "main", "scipy.ndimage.zoom"),
        ),
    )
    trace = draw("""
        cell 1ms
        step   |..........|..........|..........|
        main   |o.......o.|o.......o.|o.......o.|
        gpu 7  |K.......KK|K.......KK|K.......KK|
    """)
    (finding,) = find(PythonOverhead, replace(trace, facts=Facts(lines=lines))) or ()
    assert finding.summary.endswith(
        "Over its whole run, the program was 30.0 % of the time in train.py:12 main, which calls"
        " scipy.ndimage.zoom."
    )


@pytest.mark.parametrize(
    ("function", "title", "change"),
    [
        (
            "__getitem__",
            "Make batches in fewer calls of Python: __getitem__ (train.py:12)",
            "batch-at-once",
        ),
        ("update", "", "one-call-for-all"),
    ],
)
def test_a_function_that_looks_find_for_half_of_the_gaps_is_named(
    function: str, title: str, change: str
) -> None:
    # The gaps take 70 %, and the function's lines 36 %.
    lines = Lines(
        40.0,
        1000,
        (
            Line("train.py", 9, 0.5, "main", "torch._tensor.backward"),
            Line("train.py", 12, 0.2, function, "numpy._core.mean"),
            Line("train.py", 13, 0.16, function),
        ),
    )
    trace = draw("""
        cell 1ms
        step   |..........|..........|..........|
        main   |o.......o.|o.......o.|o.......o.|
        gpu 7  |K.......KK|K.......KK|K.......KK|
    """)
    (finding,) = find(PythonOverhead, replace(trace, facts=Facts(lines=lines))) or ()
    assert finding.title == title
    assert finding.instance == f"{function} (train.py:12)"
    assert finding.remedies[0].change == change
    assert f"36.0 % of the time in {function} (train.py:12)" in finding.summary


CONVERTING = """
    cell 1ms
    step   |..........|..........|..........|
    main   |o.......o.|o.......o.|o.......o.|
    gpu 7  |K.......KK|K.......KK|K.......KK|
"""


@pytest.mark.parametrize(
    "calls",
    ["jax._src.numpy.array_constructors.array", "tensorflow.python.framework.constant_op.constant"],
)
def test_values_that_a_framework_converts_are_work_of_the_program(calls: str) -> None:
    lines = Lines(40.0, 1000, (Line("bids.py", 81, 0.6, "batch", calls),))
    trace = draw(CONVERTING)
    (finding,) = find(PythonOverhead, replace(trace, facts=Facts(lines=lines))) or ()
    assert finding.title == "Make arrays of arrays, not of Python values: batch (bids.py:81)"
    assert finding.remedies[0].change == "arrays-once"
    assert finding.saving is not None
    # The gaps take 7 of 10 ms, and the function 6 ms. Nine tenths of that go, in 3 steps.
    assert finding.saving.expected_ns == pytest.approx(3 * 5_400_000, rel=0.01)


def test_a_framework_that_runs_work_is_no_conversion() -> None:
    lines = Lines(40.0, 1000, (Line("bids.py", 81, 0.6, "batch", "jax._src.array.__float__"),))
    (finding,) = find(PythonOverhead, replace(draw(CONVERTING), facts=Facts(lines=lines))) or ()
    assert finding.remedies[0].change == "record-host-code"


def test_lines_of_a_top_level_are_no_function() -> None:
    # As above, but the script's lines are of no function: neither takes half of the gaps.
    script = (Line("train.py", 12, 0.2, ""), Line("train.py", 13, 0.16, ""))
    trace = draw("""
        cell 1ms
        step   |..........|..........|..........|
        main   |o.......o.|o.......o.|o.......o.|
        gpu 7  |K.......KK|K.......KK|K.......KK|
    """)
    lines = Lines(40.0, 1000, script)
    (finding,) = find(PythonOverhead, replace(trace, facts=Facts(lines=lines))) or ()
    assert finding.remedies[0].change == "record-host-code"
    assert "20.0 % of the time in train.py:12" in finding.summary


def test_stretches_in_few_steps_are_left_to_the_rules_about_steps() -> None:
    trace = """
        cell 1ms
        step   |...|..........|...|
        main   |oo.|opppppppo.|oo.|
        gpu 7  |KKK|K.......KK|KKK|
    """
    assert find(PythonOverhead, trace) == ()


BETWEEN_OPERATORS = "Find out what the host does between operators"
CPU_ONLY = """
    cell 100us
    step   |..........|..........|..........|
    main   |oo....oooo|oo....oooo|oo....oooo|
"""


def test_on_the_cpu_time_between_pytorch_operators_is_python() -> None:
    # 0.4 ms of each 1 ms between two operators; half of unrecorded time is expected.
    (finding,) = find(PythonOverhead, CPU_ONLY) or ()
    assert finding.saving is not None
    assert (finding.saving.expected_ns, finding.saving.high_ns) == (600_000, 1_200_000)
    # Shorter gaps are no stalls, but two fifths of the step stay without a name.
    (finding,) = find(PythonOverhead, CPU_ONLY, settings={"minimum_python_ns": 400_001}) or ()
    assert (finding.saving, finding.title) == (None, BETWEEN_OPERATORS)
    assert isinstance(table := finding.evidence[0], Table)
    assert table.rows == (("aten::mm", "aten::mm", 3, 1_200_000),)


def test_beside_busy_programs_python_takes_longer() -> None:
    # If others use 30 % of the cores, 0.3 ms of Python take up to 0.43 ms; the gaps take 0.4.
    for others, is_stall in ((0.2, True), (0.3, False)):
        trace = replace(draw(CPU_ONLY), facts=Facts(load=Load(others, 0.0)))
        (finding,) = find(PythonOverhead, trace) or ()
        assert (finding.saving is not None) == is_stall


def test_what_others_took_of_the_cores_is_no_code_of_the_program() -> None:
    # Gaps of 0.6 ms of each 1 ms. Others had the cores for 0.4 of 1 ms, and half of the rest is
    # expected; for 0.58 of 1 ms, less than 5 % of the step is left.
    trace = draw(CPU_ONLY.replace("oo....oooo", "oo......oo"))
    for others, expected in ((0.0, 900_000), (0.4, 300_000)):
        loaded = replace(trace, facts=Facts(load=Load(others, 0.0)))
        (finding,) = find(PythonOverhead, loaded, settings={"minimum_python_ns": 100_000}) or ()
        assert finding.saving is not None
        assert finding.saving.expected_ns == expected
    loaded = replace(trace, facts=Facts(load=Load(0.58, 0.0)))
    (finding,) = find(PythonOverhead, loaded, settings={"minimum_python_ns": 100_000}) or ()
    assert finding.saving is None


def test_other_frameworks_may_dispatch_or_wait_in_short_gaps() -> None:
    (finding,) = find(PythonOverhead, CPU_ONLY, framework="tensorflow") or ()
    assert (finding.saving, finding.title) == (None, BETWEEN_OPERATORS)
    with_collective = f"{CPU_ONLY.rstrip()}\n    gloo   |CC........|CC........|CC........|\n"
    reduce = host("gloo:all_reduce", EventKind.HOST_COLLECTIVE)
    (finding,) = find(PythonOverhead, with_collective, legend={"C": reduce}) or ()
    assert finding.saving is None


def test_a_collective_on_the_host_is_left_alone() -> None:
    trace = """
        cell 1ms
        step   |..........|..........|
        main   |o'..CCCCC.|o'..CCCCC.|
        gpu 7  |KKKK......|KKKK......|
    """
    assert find(PythonOverhead, trace) == ()
    assert find(PythonOverhead, trace.replace("C", "."))


def test_python_in_the_only_step_has_low_0() -> None:
    trace = """
        cell 1ms
        step   |..........|
        main   |opppppppo.|
        gpu 7  |K.......KK|
    """
    (finding,) = find(PythonOverhead, trace) or ()
    assert finding.saving is not None
    assert (finding.saving.low_ns, finding.saving.expected_ns) == (0, 7_000_000)
    # A call into native code may be one-time work.
    assert find(PythonOverhead, trace.replace("opppppppo", "oOOOOOOOo")) == ()


def test_names_a_video_that_the_step_reads(corpus: Path) -> None:
    # The file: 218.1 of 382.5 ms pass in transformers' video_classification.py, which decodes and
    # scales a video before the first launch; 4.1 ms follow the last kernel. Recording the 34,875
    # Python frames of the former takes 4.9 ms, with 140 ns for each. The device works for 158.4 ms
    # (the union of its events), beside which no more can be done ahead.
    report = analyze(corpus / "tracelens/h100/facebook_timesformer-base-finetuned-k400")
    (finding,) = [item for item in report.findings if item.rule_id == "python-overhead"]
    assert "transformers/image_transforms.py" in finding.summary
    assert finding.saving is not None
    assert finding.saving.share_high == pytest.approx((218.1 + 4.1) / 382.5, abs=0.001)
    assert finding.saving.share_expected == pytest.approx((158.4 - 4.9) / 382.5, abs=0.001)


def test_a_single_stall_in_a_profile_without_steps_is_left_alone() -> None:
    trace = """
        cell 1ms
        main   |opppppppopppoppp|
        gpu 7  |K.......K...K...|
    """
    assert find(PythonOverhead, trace) == ()


def test_just_below_and_just_above_the_limits() -> None:
    assert find(PythonOverhead, SLOW, settings={"minimum_share": 0.71}) == ()
    assert len(find(PythonOverhead, SLOW, settings={"minimum_share": 0.69}) or ()) == 1
    assert find(PythonOverhead, SLOW, settings={"minimum_stall_ns": 7_000_000}) == ()
    assert len(find(PythonOverhead, SLOW, settings={"minimum_stall_ns": 6_999_999}) or ()) == 1


def test_names_a_sleep_in_a_recorded_jax_step(corpus: Path) -> None:
    # The script sleeps 30 ms in each step of about 40 ms (INDEX.md: 75 % of each annotation).
    report = analyze(corpus / "local-jax-cpu" / "train_steps_host_bound")
    first = report.findings[0]
    assert first.rule_id == "python-overhead"
    assert "time.sleep" in first.summary
    assert first.saving is not None
    assert first.saving.share_expected == pytest.approx(0.75, abs=0.05)


def test_idle_time_inside_a_compiled_function_is_its_executors() -> None:
    """As recorded on a busy machine: no other thread gets to run the next operator."""
    legend = {"C": host("EagerExecute: __inference_train_step_7"), "p": host("prepare")}
    text = """
        cell 1ms
        step |............|............|............|............|
        main |{}|{}|{}|{}|
        pool |{}|{}|{}|{}|
    """
    inside = text.format(*["CCCCCCCCCCCC"] * 4, *["OO........OO"] * 4)
    assert find(PythonOverhead, inside, legend=legend, framework="tensorflow") == ()
    between = text.format(*["pppppppCCCCC"] * 4, *[".......OOOOO"] * 4)
    assert find(PythonOverhead, between, legend=legend, framework="tensorflow")


def test_what_was_not_recorded_stands_where_its_time_puts_it() -> None:
    none = np.empty(0, dtype=np.int32), np.empty(0, dtype=np.int64)
    code = SelfTime(("read", "parse", "log"), (2, 1, 1), (6_000, 50, 40), *none)
    column = Column("own_ns", "Device idle", "ns")

    def names(unrecorded_ns: int) -> list[object]:
        table = host_code_table("Host code", "Code", column, code, unrecorded_ns)
        return [row[0] for row in table.rows]

    missing = "(not recorded: Python or native code)"
    # The corpus' Megatron: 29 of 35 ms, below twenty short rows.
    assert names(29_000) == [missing, "read", "parse", "log"]
    assert names(50) == ["read", "parse", missing, "log"]
    assert names(1) == ["read", "parse", "log", missing]
    assert names(0) == ["read", "parse", "log"]


GENERATED = (
    "/tmp/torchinductor_root/ov/cov463qhi2m2kw6ldmzzijfv5t3cjjklfci3qly3nsw6upcskct3.py(2533): call"
)


def finding_with(frame: str, kind: EventKind = EventKind.PYTHON) -> model.FindingInfo:
    run = run_of(draw(SLOW, legend={"p": host(frame, kind)}))
    report = build_report(analyze_run(run, Config()), Config())
    (finding,) = [item for item in report.findings if item.rule_id == "python-overhead"]
    return finding


@pytest.mark.parametrize(
    ("frame", "kind"),
    [
        (GENERATED, EventKind.PYTHON),
        # Without Python frames: the range around the call, as in torch/_inductor/output_code.py.
        ("## Call CompiledFxGraph fq7wxkr ##", EventKind.ANNOTATION),
    ],
)
def test_a_generated_wrapper_gets_advice_for_compiled_programs(frame: str, kind: EventKind) -> None:
    finding = finding_with(frame, kind)
    assert finding.title == "Speed up the generated wrapper of the compiled code"
    assert "mostly in the wrapper that torch.compile generated" in finding.summary
    assert finding.places == []
    assert [remedy.snippet for remedy in finding.remedies[:3]] == [
        "torch._inductor.config.triton.cudagraphs = True",
        "torch._inductor.config.cpp_wrapper = True",
        "TORCH_LOGS=graph_breaks python train.py",
    ]


def test_a_function_of_the_user_keeps_its_advice() -> None:
    finding = finding_with("train.py(7): prepare")
    assert finding.summary.endswith("mostly in train.py:7 prepare.")
    assert [place.file for place in finding.places] == ["train.py"]
    assert not any("cpp_wrapper" in (remedy.snippet or "") for remedy in finding.remedies)


def test_time_without_a_name_has_a_finding_although_it_is_no_recurring_stall() -> None:
    # In one of three steps the host is silent for 8 of 30 ms: nothing tells why.
    trace = """
        cell 1ms
        step   |..........|..........|..........|
        main   |oooooooooo|o........o|oooooooooo|
        gpu 7  |KKKKKKKKKK|K........K|KKKKKKKKKK|
    """
    (finding,) = find(PythonOverhead, trace) or ()
    assert (finding.saving, finding.title) == (None, "Find out what the host does in the long gaps")
    table = finding.evidence[0]
    assert isinstance(table, Table)
    ((after, before, count, idle_ns),) = table.rows
    assert (after, before) == ("ampere_sgemm", "ampere_sgemm")
    assert (count, idle_ns) == (1, 8_000_000)
    # 3 of 30 ms are a tenth, and no more.
    shorter = trace.replace("o........o", "o...oooooo").replace("K........K", "K...KKKKKK")
    assert find(PythonOverhead, shorter) == ()


def test_what_each_call_needs_only_moves_beside_the_device() -> None:
    # Twenty operators without a backward pass are inference. It prepares each input for 7 ms while
    # the device idles, and computes for 3: another thread hides 3 ms of preparation, not 7.
    trace = f"""
        cell 1ms
        step   |{"..........|" * 10}
        main   |{"opppppppo.|" * 10}
        gpu 7  |{"K.......KK|" * 10}
    """
    (finding,) = find(PythonOverhead, trace) or ()
    assert finding.saving is not None
    assert finding.saving.expected_ns == 10 * 3_000_000
    assert finding.saving.high_ns == 10 * 7_000_000


def plain(*lines: Line, looks: int = 400) -> Trace:
    """Three steps of 10 ms of a program in which nothing records operators."""
    builder = TraceBuilder()
    for number in range(3):
        builder.step(number, ms(10 * number), ms(10 * number + 10))
    return replace(builder.build(), facts=Facts(lines=Lines(looks * 0.04, looks, lines)))


def in_flux(share: float, activity: Activity | None, *, line: int = 70, loop: bool = False) -> Line:
    calls = "numpy._core.numeric.roll"
    return Line("flow.py", line, share, "flux", calls, activity=activity, is_in_loop=loop)


@pytest.mark.parametrize(
    ("activity", "loop", "title", "change"),
    [
        ("operators", False, "Make fewer temporary arrays", "arrays-in-place"),
        ("parts", True, "Copy fewer parts of arrays", "arrays-in-place"),
        ("calls", False, "Make fewer or cheaper calls of compiled functions", "one-call-for-all"),
        ("calls", True, "Let one call do what a loop does one by one", "one-call-for-all"),
        ("waits", True, "Find out what the program waits for", "shorter-waits"),
    ],
)
def test_compiled_work_of_a_program_without_operators_has_only_bounds(
    activity: Activity, *, loop: bool, title: str, change: str
) -> None:
    trace = plain(in_flux(0.4, activity, loop=loop), in_flux(0.2, "Python", line=80))
    (finding,) = find(PythonOverhead, trace) or ()
    assert finding.title == f"{title}: flux (flow.py:70)"
    assert finding.remedies[0].change == change
    assert (finding.saving, finding.severity) == (None, "low")
    assert finding.bounds is not None
    # Six of ten milliseconds, in three steps.
    assert (finding.bounds.low_ns, finding.bounds.expected_ns) == (0, 0)
    assert finding.bounds.high_ns == pytest.approx(ms(18), rel=0.01)
    assert finding.summary.startswith(
        "Over its whole run, the program was 60.0 % of the time in flux (flow.py:70), which calls"
        " numpy._core.numeric.roll, mostly in "
    )


def test_half_of_pythons_own_instructions_is_expected() -> None:
    (finding,) = find(PythonOverhead, plain(in_flux(0.4, "Python", loop=True))) or ()
    assert finding.title == "Let one call do what a loop does one by one: flux (flow.py:70)"
    saving = finding.saving
    assert saving is not None
    assert (saving.low_ns, saving.expected_ns, saving.high_ns) == (0, ms(6), ms(12))
    assert finding.severity == "medium"  # at most
    assert finding.summary.endswith(
        ", in a loop inside of each step. A faster way saves at most that."
    )


@pytest.mark.parametrize(("is_in_loop", "high_ms"), [(True, 21), (False, 12)])
def test_what_a_loop_calls_goes_with_it(*, is_in_loop: bool, high_ms: int) -> None:
    called = Line("flow.py", 12, 0.3, "relu", activity="Python", is_in_loop=is_in_loop)
    (finding,) = find(PythonOverhead, plain(in_flux(0.4, "Python", loop=True), called)) or ()
    assert finding.saving is not None
    # 70 or 40 % of three steps of 10 ms.
    assert finding.saving.high_ns == ms(high_ms)
    assert ("; 70.0 % with all such loops. A faster way" in finding.summary) == is_in_loop


def test_temporary_arrays_and_copies_of_parts_go_together() -> None:
    lines = (
        in_flux(0.2, "operators"),
        in_flux(0.15, "parts", line=71),
        in_flux(0.3, "calls", line=72),
    )
    (finding,) = find(PythonOverhead, plain(*lines)) or ()
    assert finding.title == "Make fewer temporary arrays: flux (flow.py:72)"
    # Nothing takes half.
    (finding,) = find(PythonOverhead, plain(*lines, in_flux(0.1, "Python", line=73))) or ()
    assert finding.title.startswith("Speed up the host code")


def test_side_work_is_not_the_function_of_the_steps() -> None:
    figure = Line("flow.py", 90, 0.6, "flux", "matplotlib.pyplot.pause", "figures")
    (finding,) = find(PythonOverhead, plain(figure, in_flux(0.3, "operators"))) or ()
    assert finding.title == "Make fewer temporary arrays: flux (flow.py:70)"
    (finding,) = find(PythonOverhead, plain(figure)) or ()
    assert finding.title == "Find out what the host does in the long gaps"


def test_a_place_needs_looks() -> None:
    (finding,) = find(PythonOverhead, plain(in_flux(0.5, "operators"), looks=19)) or ()
    assert finding.title == "Find out what the host does in the long gaps"
    # Five of twenty looks are enough, four are not.
    for share, is_named in ((0.25, True), (0.2, False)):
        (finding,) = find(PythonOverhead, plain(in_flux(share, "operators"), looks=20)) or ()
        assert finding.title.endswith("flux (flow.py:70)") == is_named


def test_short_gaps_between_operators_have_a_place_and_no_price() -> None:
    trace = draw("""
        cell 100us
        step   |........|........|........|
        main   |oo..oo..|oo..oo..|oo..oo..|
    """)
    lines = Lines(16.0, 400, (in_flux(0.4, "operators"),))
    (finding,) = find(PythonOverhead, replace(trace, facts=Facts(lines=lines))) or ()
    # What takes long in operators is recorded.
    assert finding.title == "Speed up the host code that everything waits for: flux (flow.py:70)"
    assert finding.remedies[0].change == "one-call-for-all"
    assert (finding.saving, finding.bounds) == (None, None)
    assert finding.summary.startswith("Nothing in the profile tells what the host does during")
    seldom = Lines(16.0, 400, (in_flux(0.2, "operators"),))  # less than half of it
    (finding,) = find(PythonOverhead, replace(trace, facts=Facts(lines=seldom))) or ()
    assert finding.title == "Find out what the host does between operators"
