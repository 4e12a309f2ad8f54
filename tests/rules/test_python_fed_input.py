"""Also fires on `keras_slow_input`, and on the demonstration's `tensorflow_input_slow`."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from tb_perfadvisor.machine.facts import Load
from tb_perfadvisor.rules.input.loading import PythonFedInput
from tb_perfadvisor.testing import check_rule, draw, find
from tb_perfadvisor.testing.symbols import host, iterator, operator
from tb_perfadvisor.trace import EventKind
from tests.support.corpus_traces import read
from tests.support.recorded_facts import FACTS

SLOW = """
    cell 1ms
    step    |..........|..........|
    main    |DDDDDDo...|DDDDDDo...|
    main    |RRRRRR....|RRRRRR....|
    main    |GGGGGG....|GGGGGG....|
    tf_data |fffff.....|fffff.....|
    gpu 7   |......KKKK|......KKKK|
"""
FIXED = """
    cell 1ms
    step    |.....|.....|
    main    |Do...|Do...|
    main    |R....|R....|
    main    |M....|M....|
    gpu 7   |.KKKK|.KKKK|
"""
LEGEND = {
    "R": iterator("Root", iterator=1),
    "G": iterator("Root::Generator", iterator=2, parent=1),
    "M": iterator("Root::ParallelMapV2", iterator=2, parent=1),
    "f": host("PyFunc:PyFunc", EventKind.INPUT_WORK),
}


def test_saves_what_the_fix_saves() -> None:
    checked = check_rule(
        PythonFedInput, slow=SLOW, fixed=FIXED, saves="5ms", legend=LEGEND, framework="tensorflow"
    )
    # At twice the rate it saves 5 ms, of which half counts at least. The middle of 2.5 and 5 ms.
    assert checked.expected_ns == 3_750_000
    assert checked.findings[0].summary.endswith(
        "for a generator (1 call per step), which runs one call at a time."
    )


BUSY = """
    cell 1ms
    step    |..........|..........|
    main    |DDDOOOOOOO|DDDOOOOOOO|
    main    |RRR.......|RRR.......|
    main    |PPP.......|PPP.......|
    tf_data |GGGGGGGGGG|GGGGGGGGGG|
    tf_data |.ffffffff.|.ffffffff.|
"""


@pytest.mark.parametrize(("idle", "expected_ns"), [(0.02, 6_500_000), (0.4, 2_000_000)])
def test_python_takes_the_cores_of_the_step(idle: float, expected_ns: int) -> None:
    # The step waits for 3 ms, and computes for 7 while Python's thread takes half of one core. With
    # idle cores, only the 2 ms count in which the function runs while the step waits.
    legend = LEGEND | {
        "P": iterator("Root::Prefetch", iterator=3, parent=1),
        "G": iterator("Root::Prefetch::Generator", iterator=2, parent=3),
    }
    trace = draw(BUSY, legend=legend, framework="tensorflow")
    facts = replace(FACTS, load=Load(others=0.0, idle=idle, seconds=1.0))
    (finding,) = find(PythonFedInput, replace(trace, facts=facts)) or ()
    assert finding.saving is not None
    assert finding.saving.expected_ns == 2 * expected_ns
    assert finding.saving.high_ns == 2 * (10_000_000 if idle < 0.1 else 2_000_000)


def test_a_generator_without_python_is_left_alone() -> None:
    # TensorFlow hands batches to several devices through its own Generator, and a Python
    # function of the model is not part of the pipeline.
    legend = LEGEND | {"f": operator("PyFunc:PyFunc")}
    assert find(PythonFedInput, SLOW, legend=legend, framework="tensorflow") == ()


def test_python_that_works_ahead_of_the_step_is_left_alone() -> None:
    prefetched = SLOW.replace("DDDDDDo", "D.....o").replace("RRRRRR", "R.....")
    prefetched = prefetched.replace("GGGGGG....", "G.........").replace(
        "|fffff.....", "|.fffff...."
    )
    assert find(PythonFedInput, prefetched, legend=LEGEND, framework="tensorflow") == ()


def test_on_a_recording(corpus: Path) -> None:
    trace = read(corpus, "local-tf-cpu/keras_slow_input/**/*.xplane.pb")
    (finding,) = find(PythonFedInput, trace) or ()
    assert "for Python code in a map (32 calls per step)" in finding.summary
    assert finding.saving is not None
    # 32 calls of 2 ms sleep for 64 ms; the step waits for 66.5 ms and overlaps some of the calls.
    assert 55 < finding.saving.expected_ns / 5e6 < 66.5


@pytest.mark.parametrize(
    "file",
    [
        "local-tf-cpu/keras_prefetch_fast/**/*.xplane.pb",
        "local-tf-cpu/keras_mixed_bf16/**/*.xplane.pb",
        # TensorFlow's own Generator.
        "xprof-demo/plugins/profile/GPU-multi-worker/*.xplane.pb",
    ],
)
def test_recordings_whose_steps_wait_for_no_python(corpus: Path, file: str) -> None:
    assert not find(PythonFedInput, read(corpus, file))
