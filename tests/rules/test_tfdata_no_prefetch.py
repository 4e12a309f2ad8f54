"""Also fires on a recording: TensorFlow 2.21, `map(f).batch(4).map(g)` without tf.data's own
optimizations, and 5 ms of other work per step. The rule expects to save 4.2 ms; without the
profiler, the step took 10.8 ms, and 7.5 ms with a prefetch at the end."""

from __future__ import annotations

from pathlib import Path

import pytest

from tb_perfadvisor.rules.input.tfdata import TfdataNoPrefetch
from tb_perfadvisor.testing import check_rule, find
from tb_perfadvisor.testing.symbols import iterator

SLOW = """
    cell 1ms
    step   |..........|..........|
    main   |DDDDoo....|DDDDoo....|
    main   |RRRR......|RRRR......|
    main   |MMMM......|MMMM......|
    gpu 7  |.....KKKKK|.....KKKKK|
"""
FIXED = """
    cell 1ms
    step   |......|......|
    main   |oo....|oo....|
    tf     |MMMM..|MMMM..|
    gpu 7  |.KKKKK|.KKKKK|
"""
CHAIN = {
    "R": iterator("Root", iterator=1),
    "M": iterator("Root::Map", iterator=2, parent=1),
}
AHEAD = {"R": CHAIN["R"], "M": iterator("Root::Prefetch", iterator=2, parent=1)}


def test_saves_what_the_fix_saves() -> None:
    checked = check_rule(
        TfdataNoPrefetch, slow=SLOW, fixed=FIXED, saves="4ms", legend=CHAIN, framework="tensorflow"
    )
    assert checked.expected_ns == 4_000_000
    assert "ends in Map" in checked.findings[0].summary


@pytest.mark.parametrize("last", ["Prefetch", "MapAndBatch", "ParallelMapV2", "ForeverRepeat"])
def test_iterators_that_work_ahead_are_left_alone(last: str) -> None:
    # A repeat passes elements on, and here the iterator below it is unknown.
    legend = {"R": CHAIN["R"], "M": iterator(f"Root::{last}", iterator=2, parent=1)}
    assert find(TfdataNoPrefetch, SLOW, legend=legend, framework="tensorflow") == ()


@pytest.mark.parametrize(
    "last",
    [
        *("Model", "Options", "MaxIntraOpParallelism", "PrivateThreadPool", "Finalize"),
        *("AssertNext", "AssertCardinality", "FiniteTake", "FiniteSkip", "Take", "Skip"),
        *("Repeat", "FiniteRepeat", "ForeverRepeat"),
    ],
)
def test_iterators_that_only_pass_elements_on_are_not_the_last_transformation(last: str) -> None:
    trace = """
        cell 1ms
        step   |..........|..........|
        main   |DDDDoo....|DDDDoo....|
        main   |RRRR......|RRRR......|
        main   |PPPP......|PPPP......|
        main   |MMMM......|MMMM......|
        gpu 7  |.....KKKKK|.....KKKKK|
    """
    legend = {
        "R": CHAIN["R"],
        "P": iterator(f"Root::{last}", iterator=2, parent=1),
        "M": iterator(f"Root::{last}::Map", iterator=3, parent=2),
    }
    (finding,) = find(TfdataNoPrefetch, trace, legend=legend, framework="tensorflow") or ()
    assert "ends in Map" in finding.summary


def test_saves_at_most_the_rest_of_the_step() -> None:
    # 7 ms of input and 3 ms of work: working ahead leaves 4 ms of waiting.
    trace = """
        cell 1ms
        step   |..........|..........|
        main   |DDDDDDDo..|DDDDDDDo..|
        main   |RRRRRRR...|RRRRRRR...|
        main   |MMMMMMM...|MMMMMMM...|
        gpu 7  |.......KKK|.......KKK|
    """
    (finding,) = find(TfdataNoPrefetch, trace, legend=CHAIN, framework="tensorflow") or ()
    assert finding.saving is not None
    assert finding.saving.expected_ns == 2 * 3_000_000


def test_just_below_and_just_above_the_limit() -> None:
    # 4 of 10 ms of each step.
    near = {"legend": CHAIN, "framework": "tensorflow"}
    assert find(TfdataNoPrefetch, SLOW, settings={"minimum_share": 0.41}, **near) == ()
    assert len(find(TfdataNoPrefetch, SLOW, settings={"minimum_share": 0.39}, **near) or ()) == 1


@pytest.mark.parametrize("name", ["keras_prefetch_fast", "keras_slow_input", "keras_mixed_bf16"])
def test_recorded_pipelines_that_work_ahead(corpus: Path, name: str) -> None:
    # The slow pipeline ends in a fused map and batch, which has its own thread.
    from tests.support.corpus_traces import read

    trace = read(corpus, f"local-tf-cpu/{name}/**/*.xplane.pb")
    assert find(TfdataNoPrefetch, trace) == ()
