from __future__ import annotations

from pathlib import Path

import pytest

from tb_perfadvisor.rules.launch.host_threads import HostThreadContention
from tb_perfadvisor.rules.launch.launching import LaunchBound
from tb_perfadvisor.testing import TraceBuilder, check_rule, find, us
from tb_perfadvisor.testing.symbols import function_run, iterator
from tb_perfadvisor.trace import Trace
from tests.support.changed_rule import changed
from tests.support.corpus_traces import read

STEPS, KERNELS = 4, 10


def steps(late_us: int, *, threads: int = 2, cores: int = 2, apart: bool = False) -> Trace:
    """Steps of kernels of 10 us, each 2 us late: those of the second half `late_us`.

    In the second half, threads of the input pipeline execute a function each.
    """
    builder = TraceBuilder("tensorflow").device("NVIDIA A100-SXM4-40GB", memory_bytes=40 << 30)
    at, run = 0, 0
    for number in range(STEPS):
        begun = at
        for kernel in range(KERNELS):
            if kernel == KERNELS // 2:
                middle = at
            at += us(late_us if kernel >= KERNELS // 2 else 2)
            builder.launch(at - us(1), at)
            name = kernel if apart else kernel % (KERNELS // 2)
            builder.kernel(f"conv_{name}", at, at + us(10))
            at += us(10)
        builder.step(number, begun, at)
        root = iterator("Root::ParallelMapV2", iterator=2, cores=cores, parallelism=2)
        builder.add(root, middle, at, thread="tf_data")
        for thread in range(threads):
            run += 1
            started = middle + thread * us(1) // 2
            builder.add(function_run(run), started, started + 100, thread="tf_data")
            executes = function_run(run, "ExecutorState::Process")
            builder.add(executes, started + 200, at, thread=f"pool {thread}")
    return builder.build()


def test_saves_what_the_fix_saves() -> None:
    # In each step five kernels are launched after 20 us instead of 2: 5 x 18 = 90 us.
    checked = check_rule(HostThreadContention, slow=steps(20), fixed=steps(2), saves=us(90))
    assert checked.expected_ns == us(90)
    (finding,) = checked.findings
    assert finding.summary == (
        "The device idles 90.0 µs of each step (42.9 %) longer because functions of the input"
        " pipeline keep all 2 cores busy: 20.0 µs before each launch, against 2.00 µs at other"
        " times."
    )
    assert HostThreadContention.refines == LaunchBound.id


@pytest.mark.parametrize(
    "trace",
    [
        steps(20, threads=1),  # one core is free
        steps(20, cores=4),
        steps(20, threads=0),
        steps(20, apart=True),  # other kernels are no basis for comparison
    ],
)
def test_other_reasons_for_late_launches(trace: Trace) -> None:
    assert find(HostThreadContention, trace) == ()


def test_just_below_and_just_above_the_limits() -> None:
    # 90 of 10 x 10 + 5 x 2 + 5 x 20 = 210 us, 43 %; ten times as late.
    slow = steps(20)
    assert find(changed(HostThreadContention, {"minimum_share": 0.44}), slow) == ()
    assert find(changed(HostThreadContention, {"minimum_share": 0.42}), slow)
    assert find(changed(HostThreadContention, {"minimum_slowdown": 10.1}), slow) == ()
    assert find(changed(HostThreadContention, {"minimum_slowdown": 9.9}), slow)
    # Four steps of five kernels each.
    assert find(changed(HostThreadContention, {"fewest_launches": 21}), slow) == ()
    assert find(changed(HostThreadContention, {"fewest_launches": 20}), slow)


def test_stalls_of_milliseconds_are_left_alone() -> None:
    assert find(HostThreadContention, steps(2_100)) == ()


def test_a_recording_with_free_cores_is_left_alone(corpus: Path) -> None:
    trace = read(corpus, "xprof-demo/plugins/profile/GPU-multi-worker/*.xplane.pb")
    assert find(HostThreadContention, trace) in ((), None)
