from __future__ import annotations

import pytest
from msgspec.structs import replace

from tb_perfadvisor.machine.facts import Facts, Line, Lines
from tb_perfadvisor.rules.launch.compilation import RecurringCompilation
from tb_perfadvisor.signals import reference_worker
from tb_perfadvisor.signals.recording.completeness import is_start_up
from tb_perfadvisor.testing import TraceBuilder, check_rule, find, ms, run_of
from tb_perfadvisor.trace import EventKind, Trace

STEP = Line("train.py", 41, 0.2, "train", "jax._src.array.__float__", spells=60)


def program(*lines: Line, looks: int = 1000, step_ms: float = 10, compiling_ms: float = 0) -> Trace:
    """Three steps on the CPU, of a run in which some lines were seen."""
    builder = TraceBuilder("jax")
    for number in range(3):
        start, end = ms(number * step_ms), ms((number + 1) * step_ms)
        builder.step(number, start, end)
        if compiling_ms:
            builder.host(EventKind.COMPILE, "backend_compile", start, start + ms(compiling_ms))
        builder.operator("dot.1", start + ms(compiling_ms), end, launches=False)
    return replace(builder.build(), facts=Facts(lines=Lines(looks * 0.04, looks, lines)))


def compiled(share: float, spells: int = 12) -> Line:
    return Line(
        *("train.py", 52, share, "train", "jax._src.pjit.cache_miss"),
        activity="compiling",
        spells=spells,
    )


def test_saves_the_share_of_the_run() -> None:
    checked = check_rule(
        RecurringCompilation,
        slow=program(compiled(0.6), STEP),
        fixed=program(compiled(0.01), STEP, step_ms=4),
        saves="6ms",  # 60 % of 10 ms
    )
    (finding,) = checked.findings
    assert finding.saving is not None
    # The standard error of 60 % of 1,000 looks is 1.55 points.
    assert finding.saving.low_ns == pytest.approx(ms(30) * (0.48 - 2 * 0.0155), rel=0.001)
    assert finding.instance == "train.py:52 compiled at least 12 times, 60.0 % of the run"


def test_what_was_compiled_once_for_each_kind_of_batch_was_needed() -> None:
    assert find(RecurringCompilation, program(compiled(0.6, spells=3), STEP)) == ()
    assert find(RecurringCompilation, program(compiled(0.6, spells=4), STEP))


def test_recorded_compilations_say_it_themselves() -> None:
    slow = program(compiled(0.6), STEP, compiling_ms=6)
    assert find(RecurringCompilation, slow) == ()
    assert find(RecurringCompilation, program(compiled(0.6), STEP, compiling_ms=1))


def test_nothing_without_enough_looks_or_without_compiling() -> None:
    assert find(RecurringCompilation, program(compiled(0.6), looks=19)) == ()
    assert find(RecurringCompilation, program(compiled(0.6), looks=20))
    assert find(RecurringCompilation, program(STEP)) == ()
    assert find(RecurringCompilation, replace(program(STEP), facts=Facts())) is None


def test_just_below_and_just_above_the_limit() -> None:
    assert find(RecurringCompilation, program(compiled(0.049), STEP)) == ()
    assert find(RecurringCompilation, program(compiled(0.051), STEP))


def test_what_recurs_is_no_start() -> None:
    builder = TraceBuilder("jax")
    builder.host(EventKind.COMPILE, "backend_compile", 0, ms(10))
    start = builder.build()
    middle = replace(start, facts=Facts(lines=Lines(40, 1000, (compiled(0.6),))))
    assert is_start_up(reference_worker(run_of(start)))
    assert not is_start_up(reference_worker(run_of(middle)))


def test_models_that_are_made_for_each_client() -> None:
    line = replace(compiled(0.4), calls="keras.src.models.sequential.__init__")
    (finding,) = find(RecurringCompilation, program(line, STEP)) or ()
    assert "A new model is made and compiled each time." in finding.summary
    assert "set its weights" in finding.remedies[0].text
