from __future__ import annotations

import random
import time
import types

import pytest

from tb_perfadvisor.instrument.stack_samples import StackSamples

DRAWING = types.ModuleType("matplotlib.pyplot")
# Like code of a package that is installed.
exec(compile("import time\ndef pause(s): time.sleep(s)\ndef load(s): time.sleep(s)",
             "/x/site-packages/matplotlib/pyplot.py", "exec"), vars(DRAWING))  # fmt: skip


def test_shares_of_lines_between_the_first_and_the_last_step() -> None:
    samples = StackSamples()
    samples.step()
    for _ in range(10):
        DRAWING.pause(0.15)
        time.sleep(0.05)
        samples.step()
    DRAWING.load(0.3)  # after the last step
    samples.stop()
    lines = samples.lines
    assert lines is not None
    assert lines.seconds == pytest.approx(2.0, abs=0.4)
    # On a busy machine, a look may catch the way into the function, too.
    drawn = max(
        (line for line in lines.lines if line.side_work == "figures"), key=lambda line: line.share
    )
    assert drawn.calls == "matplotlib.pyplot.pause"
    assert drawn.path.endswith("test_stack_samples.py")
    assert drawn.share == pytest.approx(0.75, abs=0.2)
    assert sum(line.share for line in lines.lines) <= 1.0001


def test_what_is_read_is_no_side_work_and_recordings_are_left_out() -> None:
    samples = StackSamples()
    samples.step()
    DRAWING.load(0.3)
    samples.pause()
    DRAWING.pause(0.5)
    samples.go_on()
    samples.step()
    time.sleep(0.2)
    samples.stop()
    lines = samples.lines
    assert lines is not None
    assert lines.seconds == pytest.approx(0.3, abs=0.2)
    assert {line.side_work for line in lines.lines} == {None}


def test_what_we_read_ourselves_is_none_of_the_program() -> None:
    ours = types.ModuleType("tb_perfadvisor.machine.load")
    exec(
        compile(
            "import queue\ndef measure():\n"
            "    try: queue.Queue().get(timeout=0.5)\n"
            "    except queue.Empty: pass",
            "/x/site-packages/tb_perfadvisor/machine/load.py",
            "exec",
        ),
        vars(ours),
    )
    samples = StackSamples()
    samples.step()
    ours.measure()
    time.sleep(0.3)
    samples.step()
    samples.stop()
    lines = samples.lines
    assert lines is not None
    assert not [line for line in lines.lines if "queue" in line.calls or "threading" in line.calls]
    assert sum(line.share for line in lines.lines) == pytest.approx(0.375, abs=0.2)


def test_the_random_numbers_of_the_program_stay_the_same() -> None:
    samples = StackSamples()
    random.seed(0)
    expected = [random.random() for _ in range(3)]
    random.seed(0)
    samples.step()
    found = []
    for _ in range(3):
        found.append(random.random())
        time.sleep(0.2)  # several looks
    samples.stop()
    assert found == expected


def test_nothing_before_the_first_step_and_after_it_has_stopped() -> None:
    samples = StackSamples()
    assert samples.lines is None
    samples.stop()
    samples.step()
    time.sleep(0.1)
    samples.step()
    assert samples.lines is None


JAX = types.ModuleType("jax._src.compiler")
exec(compile("def backend_compile(s, traced): traced(s)",
             "/x/site-packages/jax/_src/compiler.py", "exec"), vars(JAX))  # fmt: skip


def traced_by_us(seconds: float) -> None:
    time.sleep(seconds)


def test_compiling_belongs_to_the_line_that_calls_the_compiled_function() -> None:
    samples = StackSamples()
    samples.step()
    for _ in range(4):
        # The function's own code runs while it is traced.
        JAX.backend_compile(0.2, traced_by_us)
        time.sleep(0.15)
    samples.step()
    samples.stop()
    lines = samples.lines
    assert lines is not None
    (compiled,) = [line for line in lines.lines if line.activity == "compiling"]
    assert compiled.calls == "jax._src.compiler.backend_compile"
    assert compiled.share == pytest.approx(0.57, abs=0.2)
    assert compiled.spells == pytest.approx(4, abs=1)
