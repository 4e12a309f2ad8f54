"""What a step waits for once workers load its batches."""

from __future__ import annotations

from pathlib import Path

import pytest

from tb_perfadvisor import analyze
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.input.host_loading import LoadingApart, loading_apart
from tb_perfadvisor.testing import draw, host, ms, run_of
from tb_perfadvisor.trace import EventKind

LEGEND = {
    "D": host("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", EventKind.INPUT_WAIT)
}
HAND_OVER_NS = 1_400_000


def apart(trace: str) -> LoadingApart:
    found = loading_apart(Signals(run_of(draw(trace, legend=LEGEND))))
    assert found is not None
    return found


def test_a_device_that_is_always_busy_hides_a_slower_host() -> None:
    # Of 30 ms, the device computes 20; the host launches in 2 and waits for nothing.
    found = apart(
        """
        cell 2ms
        step   |...............|...............|
        main   |DDDDDo.........|DDDDDo.........|
        gpu 7  |.....KKKKKKKKKK|.....KKKKKKKKKK|
        """
    )
    # The rest of the host's step is not launching, but is counted as its work: 20 ms.
    assert found.best_ns == 2 * ms(20)
    assert found.expected_ns == 2 * (ms(22) + HAND_OVER_NS)
    assert found.worst_ns == 2 * (ms(25) + HAND_OVER_NS)


def test_where_the_device_waits_for_the_host_a_slower_host_delays_it() -> None:
    # 20 ms of loading, and 20 of operators beside which the device computes for 16.
    found = apart(
        """
        cell 2ms
        step   |....................|....................|
        main   |DDDDDDDDDDo'o'o'o'o'|DDDDDDDDDDo'o'o'o'o'|
        gpu 7  |...........KK.KK.KK.|...........KK.KK.KK.|
        """
    )
    # Each millisecond that the host takes longer is one more of the step: 10 and 25 % of 20.
    assert found.expected_ns - found.best_ns == 2 * (ms(2) + HAND_OVER_NS)
    assert found.worst_ns - found.best_ns == 2 * (ms(5) + HAND_OVER_NS)


def test_a_single_worker_may_be_slower_than_the_step() -> None:
    # 24 ms of loading, and 6 of computing: in the worst case, one worker loads in 24.
    found = apart(
        """
        cell 2ms
        step   |...............|...............|
        main   |DDDDDDDDDDDDo..|DDDDDDDDDDDDo..|
        gpu 7  |............KKK|............KKK|
        """
    )
    assert found.worst_ns == 2 * ms(24)
    # Four workers load in 6: the host and the handing over decide.
    assert found.expected_ns == 2 * (ms(6) * 11 // 10 + HAND_OVER_NS)


def test_with_workers_and_on_the_cpu_it_is_unknown() -> None:
    without = "cell 2ms\nstep |......|......|\nmain |DDDOO.|DDDOO.|"
    assert loading_apart(Signals(run_of(draw(without, legend=LEGEND)))) is None
    trace = "cell 2ms\nstep |......|......|\nmain |oo....|oo....|\ngpu 7 |.KKKK.|.KKKK.|"
    assert loading_apart(Signals(run_of(draw(trace)))) is None


@pytest.mark.parametrize(
    ("path", "gained_ms"),
    [
        # Mean steps without workers, and with four: INDEX.md.
        ("kineto/resnet50_num_workers_0", 174.829 - 139.692),
        ("kineto-old/resnet50_profiler_api_num_workers_0", 154.745 - 128.247),
    ],
)
def test_what_the_recorded_pairs_gained_lies_in_the_range(
    corpus: Path, path: str, gained_ms: float
) -> None:
    report = analyze(corpus / path)
    for rule_id in ("input-stall", "loader-in-main-process"):
        (finding,) = [found for found in report.findings if found.rule_id == rule_id]
        assert finding.saving is not None
        assert finding.saving.low_ns <= ms(gained_ms) <= finding.saving.high_ns
        # And not all of what was waited for is expected.
        assert finding.saving.expected_ns < 0.8 * finding.saving.high_ns
