"""Also fires on a recording: TensorFlow 2.21 with map_and_batch_fusion off, batches of 128
elements of 432 KiB, and 5 ms of other work per step. The rule expects to save 4.4 ms, at most 9.3;
without the profiler, the step took 14.7 ms, and 9.4 ms with the fusion."""

from __future__ import annotations

from tb_perfadvisor.rules.input.tfdata import TfdataUnfusedMapBatch
from tb_perfadvisor.testing import check_rule, find
from tb_perfadvisor.testing.symbols import iterator

# The batch copies for 5 ms; the map makes it wait for 1 ms.
SLOW = """
    cell 1ms
    step   |..........|..........|
    main   |DDDDDDo...|DDDDDDo...|
    main   |BBBBBB....|BBBBBB....|
    main   |P.........|P.........|
    gpu 7  |......KKKK|......KKKK|
"""
FIXED = """
    cell 1ms
    step   |.....|.....|
    main   |Do...|Do...|
    main   |M....|M....|
    gpu 7  |.KKKK|.KKKK|
"""
LEGEND = {
    "B": iterator("Root::BatchV2", iterator=1, batch_size=128),
    "P": iterator("Root::BatchV2::ParallelMapV2", iterator=2, parent=1),
    "M": iterator("Root::MapAndBatch", iterator=1, batch_size=128),
}


def test_saves_what_the_fix_saves() -> None:
    checked = check_rule(
        TfdataUnfusedMapBatch,
        slow=SLOW,
        fixed=FIXED,
        saves="5ms",
        legend=LEGEND,
        framework="tensorflow",
    )
    assert checked.expected_ns == 5_000_000
    assert checked.findings[0].saving is not None
    assert checked.findings[0].saving.high_ns == 2 * 6_000_000


def test_small_batches_are_left_alone() -> None:
    for size, count in ((15, 0), (16, 1)):
        legend = LEGEND | {"B": iterator("Root::BatchV2", iterator=1, batch_size=size)}
        findings = find(TfdataUnfusedMapBatch, SLOW, legend=legend, framework="tensorflow")
        assert findings is not None
        assert len(findings) == count


def test_a_batch_that_follows_no_map_is_left_alone() -> None:
    legend = LEGEND | {"P": iterator("Root::BatchV2::TFRecord", iterator=2, parent=1)}
    assert find(TfdataUnfusedMapBatch, SLOW, legend=legend, framework="tensorflow") == ()
