"""Also fires on a recording: TensorFlow 2.21, 128 records decoded again in each epoch of two
steps, and 5 ms of other work per step. The rule expects to save 4.8 ms; without the profiler, the
step took 10.7 ms, and 6.4 ms with a cache."""

from __future__ import annotations

import pytest

from tb_perfadvisor.rules.input.tfdata import TfdataUncachedSource
from tb_perfadvisor.testing import check_rule, find
from tb_perfadvisor.testing.symbols import iterator, operator

# Each epoch has one element of a million floats; the profile contains the second one whole.
SLOW = """
    cell 1ms
    step   |..........|..........|..........|
    main   |DDDDDDo...|DDDDDDo...|DDDDDDo...|
    main   |RRRRRR....|RRRRRR....|RRRRRR....|
    main   |XXXXXX....|YYYYYY....|ZZZZZZ....|
    gpu 7  |......KKKK|......KKKK|......KKKK|
"""
FIXED = """
    cell 1ms
    step   |....|....|....|
    main   |o...|o...|o...|
    cache  |C...|C...|C...|
    gpu 7  |KKKK|KKKK|KKKK|
"""


def legend(memory_bytes: int = 1_000_000_000, shapes: str = "[1000,1000]") -> dict[str, object]:
    def epoch(number: int) -> object:
        return iterator(
            f"Root::ForeverRepeat[{number}]::Map",
            iterator=10 + number,
            parent=1,
            shapes=shapes,
            types="float",
        )

    return {
        "R": iterator("Root::ForeverRepeat", iterator=1, memory_bytes=memory_bytes),
        "C": iterator("Root::ForeverRepeat[1]::MemoryCache", iterator=3, parent=1),
        **{letter: epoch(number) for number, letter in enumerate("XYZ")},
    }


def test_saves_what_the_fix_saves() -> None:
    checked = check_rule(
        TfdataUncachedSource,
        slow=SLOW,
        fixed=FIXED,
        saves="6ms",
        legend=legend(),
        framework="tensorflow",
    )
    # A million floats of four bytes.
    assert "an epoch is only 3.81 MiB" in checked.findings[0].summary


@pytest.mark.parametrize(
    ("known", "count"),
    [
        (legend(), 1),
        # A quarter of the memory is 4 MB, or a byte less.
        (legend(memory_bytes=16_000_000), 1),
        (legend(memory_bytes=15_999_999), 0),
        (legend(shapes="[1000,?]"), 0),
    ],
)
def test_only_records_that_fit_in_memory_are_cached(known: dict[str, object], count: int) -> None:
    findings = find(TfdataUncachedSource, SLOW, legend=known, framework="tensorflow")
    assert len(findings or ()) == count


def test_a_whole_epoch_must_be_recorded() -> None:
    two = SLOW.replace("ZZZZZZ", "YYYYYY")
    assert find(TfdataUncachedSource, two, legend=legend(), framework="tensorflow") == ()


def test_random_records_are_left_alone() -> None:
    trace = SLOW.replace("    gpu 7", "    tf_data |r.........|..........|..........|\n    gpu 7")
    name = "random_uniform/RandomUniform:RandomUniform"
    from tb_perfadvisor.testing.symbols import host
    from tb_perfadvisor.trace import EventKind

    for symbol, count in ((host(name, EventKind.INPUT_WORK), 0), (operator(name), 1)):
        # An operator of the model says nothing about the pipeline.
        symbols = legend() | {"r": symbol}
        findings = find(TfdataUncachedSource, trace, legend=symbols, framework="tensorflow")
        assert len(findings or ()) == count
