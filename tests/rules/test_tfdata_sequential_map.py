"""Also fires on `keras_slow_input` and on the demonstration's `tensorflow_input_slow`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tb_perfadvisor.rules.input.tfdata import TfdataSequentialMap
from tb_perfadvisor.testing import check_rule, find
from tb_perfadvisor.testing.symbols import function_run, iterator
from tests.support.corpus_traces import read

# Eight calls of a millisecond, one after the other, in a map that runs on the training thread.
SLOW = """
    cell 1ms
    step   |............|............|
    main   |DDDDDDDDo...|DDDDDDDDo...|
    main   |RRRRRRRR....|RRRRRRRR....|
    main   |MMMMMMMM....|MMMMMMMM....|
    main   |FFFFFFFF....|FFFFFFFF....|
    pool   |EEEEEEEE....|EEEEEEEE....|
    gpu 7  |........KKKK|........KKKK|
"""
# The same on two cores: the second runs half of the calls.
FIXED = """
    cell 1ms
    step   |........|........|
    main   |DDDDo...|DDDDo...|
    main   |RRRR....|RRRR....|
    main   |PPPP....|PPPP....|
    main   |FFFF....|FFFF....|
    pool   |EEEE....|EEEE....|
    gpu 7  |....KKKK|....KKKK|
"""


def legend(kind: str = "Map", *, cores: int = 2, **columns: int) -> dict[str, object]:
    parallel = columns or {"parallelism": 2, "is_autotuned": 0}
    return {
        "R": iterator("Root", iterator=1, cores=cores),
        "M": iterator(f"Root::{kind}", iterator=2, parent=1, **columns),
        "P": iterator("Root::ParallelMapV2", iterator=2, parent=1, **parallel),
        "F": function_run(7, "InstantiatedCapturedFunction::Run"),
        "E": function_run(7, "ExecutorState::Process"),
    }


def test_saves_what_the_fix_saves() -> None:
    checked = check_rule(
        TfdataSequentialMap,
        slow=SLOW,
        fixed=FIXED,
        saves="4ms",
        legend=legend(),
        framework="tensorflow",
    )
    # 8 ms of calls on two cores take 4 ms.
    assert checked.expected_ns == 4_000_000
    assert "one call of its function at a time on 2 cores" in checked.findings[0].summary


@pytest.mark.parametrize(
    ("columns", "expected_ms"),
    [
        ({"parallelism": 2, "is_autotuned": 0}, 6.0),  # 8 ms on 8 cores in place of 2: 2 ms
        ({"parallelism": 4, "is_autotuned": 0}, 4.0),
        ({"parallelism": 5, "is_autotuned": 0}, None),
        ({"parallelism": 2, "is_autotuned": 1}, None),
    ],
)
def test_a_fixed_number_of_few_calls(columns: dict[str, int], expected_ms: float | None) -> None:
    findings = find(
        TfdataSequentialMap,
        SLOW,
        legend=legend("ParallelMapV2", cores=8, **columns),
        framework="tensorflow",
    )
    assert findings is not None
    savings = [
        finding.saving.expected_ns / 2e6 for finding in findings if finding.saving is not None
    ]
    assert savings == ([] if expected_ms is None else [expected_ms])


def test_maps_of_a_parallel_interleave_run_in_parallel() -> None:
    symbols = legend() | {
        "R": iterator("Root::ParallelInterleaveV4", iterator=1),
        "M": iterator("Root::ParallelInterleaveV4[3]::Map", iterator=2, parent=1),
    }
    assert find(TfdataSequentialMap, SLOW, legend=symbols, framework="tensorflow") == ()


def test_a_tiny_function_is_not_worth_a_thread() -> None:
    # Each call runs 8 ms; a limit above that treats them as tiny.
    settings = {"minimum_run_ns": 8_000_001.0}
    options = {"legend": legend(), "framework": "tensorflow"}
    assert find(TfdataSequentialMap, SLOW, settings=settings, **options) == ()


# On the CPU, a map runs ahead of the step all the time, on a thread of its own.
ON_CPU = """
    cell 1ms
    step   |..........|..........|
    fetch  |DD........|DD........|
    pool 1 |..OOOOOOOO|..OOOOOOOO|
    pool 2 |{second}|{second}|
    ahead  |RRRRRRRRRR|RRRRRRRRRR|
    ahead  |MMMMMMMMMM|MMMMMMMMMM|
    ahead  |FFFFFFFFFF|FFFFFFFFFF|
    pool 3 |EEEEEEEEEE|EEEEEEEEEE|
"""


@pytest.mark.parametrize(
    ("second", "cores", "expected_ms", "high_ms"),
    [
        # The step waits 2 of 10 ms, and two threads compute for 8: one of two cores idles for 2 ms,
        # so that the same work takes 1 ms less on both.
        ("..OOOOOOOO", 2, 1.0, 1.0),
        # Two of three cores idle for 2 ms: 4 / 3.
        ("..OOOOOOOO", 3, 4 / 3, 4 / 3),
        # An unknown number is taken for two, and may be larger.
        ("..OOOOOOOO", -1, 1.0, 2.0),
        # With many cores, the whole wait goes.
        ("..........", 16, 2.0, 2.0),
    ],
)
def test_more_calls_save_no_more_than_idle_cores_allow(
    second: str, cores: int, expected_ms: float, high_ms: float
) -> None:
    symbols = legend(cores=cores)
    (finding,) = find(
        TfdataSequentialMap,
        ON_CPU.format(second=second),
        legend=symbols,
        framework="tensorflow",
    ) or ()  # fmt: skip
    assert finding.saving is not None
    assert finding.saving.expected_ns / 2e6 == pytest.approx(expected_ms, abs=1e-5)
    assert finding.saving.high_ns / 2e6 == pytest.approx(high_ms, abs=1e-5)


def test_without_idle_cores_more_calls_save_nothing() -> None:
    text = ON_CPU.format(second="OOOOOOOOOO")
    assert find(TfdataSequentialMap, text, legend=legend(cores=2), framework="tensorflow") == ()


def test_on_a_recording(corpus: Path) -> None:
    # 32 calls of 2 ms and more in a step of 84 ms, of which 66.5 ms wait for input.
    (finding,) = (
        find(TfdataSequentialMap, read(corpus, "local-tf-cpu/keras_slow_input/**/*.xplane.pb"))
        or ()
    )
    assert "MapAndBatch, which runs one call" in finding.summary
    assert finding.saving is not None
    # At least half of 32 calls of 2 ms, and at most half of the step.
    assert 64 / 2 < finding.saving.expected_ns / 5e6 < 84.2 / 2
    assert finding.saving.high_ns / 5e6 == pytest.approx(66.3, abs=0.1)


@pytest.mark.parametrize("name", ["keras_prefetch_fast", "keras_mixed_bf16"])
def test_recordings_that_do_not_wait_are_left_alone(corpus: Path, name: str) -> None:
    # keras_mixed_bf16 also maps one call at a time, but fast enough.
    assert find(TfdataSequentialMap, read(corpus, f"local-tf-cpu/{name}/**/*.xplane.pb")) == ()
