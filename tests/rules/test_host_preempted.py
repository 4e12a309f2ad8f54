from __future__ import annotations

import pytest

from tb_perfadvisor.rules.launch.host_threads import HostPreempted
from tb_perfadvisor.rules.launch.host_work import PythonOverhead
from tb_perfadvisor.rules.launch.launching import LaunchBound
from tb_perfadvisor.testing import check_rule, find
from tb_perfadvisor.testing.symbols import host, kernel, operator
from tb_perfadvisor.trace import EventKind

# The names are those of a recorded trace of Megatron, with eight ranks on too few cores.
LEGEND = {
    "v": operator("aten::view", launches=False),
    "R": host("cudaEventRecord", EventKind.RUNTIME),
    "F": host("cudaFuncSetAttribute", EventKind.RUNTIME),
    "h": operator("aten::cat", launches=False),
    "p": host("Activity Buffer Request", EventKind.OVERHEAD),
    **{
        letter: kernel(f"ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_64x{letter}_tn")
        for letter in "1234"
    },
}


def steps(main: str, gpu: str, *others: str, count: int = 4) -> str:
    """A drawing of equal steps; a line with several parts has one for each step."""
    lines = {"step": "." * len(gpu.split("|")[0]), "main": main, "gpu 7": gpu}
    lines |= {f"thread {number}": line for number, line in enumerate(others)}
    drawn = ["cell 100us"]
    for name, line in lines.items():
        parts = line.split("|") if "|" in line else [line] * count
        drawn.append(f"{name:8} |{'|'.join(parts)}|")
    return "\n".join(drawn)


# In each step one view takes 2.5 ms instead of 0.1.
SLOW = steps(
    "ov.v.vo.vvvvvvvvvvvvvvvvvvvvvvvvvo",
    "KKKKKKKK.........................K",
)
FIXED = steps("ov.v.vo.vo", "KKKKKKKK.K")


def test_saves_what_the_fix_saves() -> None:
    checked = check_rule(HostPreempted, slow=SLOW, fixed=FIXED, saves="2.4ms", legend=LEGEND)
    summary = checked.findings[0].summary
    # 2.4 of 3.4 ms.
    assert "2.40 ms of each step (70.6 %)" in summary
    assert "4 calls took milliseconds, such as aten::view with 2.50 ms, usually 100 µs" in summary


def test_rules_about_slow_host_code_leave_this_idle_out() -> None:
    # A view that usually takes 2.5 ms is slow itself.
    always = SLOW.replace("ov.v.vo.", "o.....o.")
    assert find(HostPreempted, always, legend=LEGEND) == ()
    assert find(PythonOverhead, always, legend=LEGEND)
    assert find(PythonOverhead, SLOW, legend=LEGEND) == ()


def test_short_gaps_are_left_out_of_launch_bound() -> None:
    # Views of 50 µs, one of them of 1.2 ms, during which the device idles.
    trace = steps("ov.v.vo.vvvvvvvvvvvvvvvvvvvvvvvvo", "KKKKKKKK........................K")
    trace = trace.replace("100us", "50us")
    assert find(HostPreempted, trace, legend=LEGEND)
    (found,) = find(LaunchBound, trace, legend=LEGEND) or ()
    # Four views of 50 µs are left.
    assert found.saving is not None
    assert found.saving.high_ns == 4 * 50_000


@pytest.mark.parametrize(
    ("main", "gpu", "others"),
    [
        ("ov.v.vo.vvvvvvvvvvvvvvvvvvvvvvvvvo", "KKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKK", ()),
        # Joining tensors in the host's memory takes as long as they are large.
        ("h.h.h.o.hhhhhhhhhhhhhhhhhhhhhhhhhho", "KKKKKKKK..........................K", ()),
        # The profiler swaps its buffers.
        (
            "ov.v.vo.vvvvvvvvvvvvvvvvvvvvvvvvvo",
            "KKKKKKKK.........................K",
            (".........pppppppppppppppppppppppp.",),
        ),
        # Memory is allocated on another thread, which takes the runtime's lock.
        (
            "oR.R.Ro.RRRRRRRRRRRRRRRRRRRRRRRRRo",
            "KKKKKKKK.........................K",
            (".........AAAAAAAAAAAAAAAAAAAAAAAA.",),
        ),
        # Code is loaded on another thread, which takes the same lock.
        (
            "oR.R.Ro.RRRRRRRRRRRRRRRRRRRRRRRRRo",
            "KKKKKKKK.........................K",
            (".........LLLLLLLLLLLLLLLLLLLLLLLL.",),
        ),
        # The compiler traces a function with the program's operators.
        (
            "ov.v.vo.vvvvvvvvvvvvvvvvvvvvvvvvvo",
            "KKKKKKKK.........................K",
            (".........cccccccccccccccccccccccc.",),
        ),
    ],
    ids=["busy device", "work on the host", "profiler", "lock", "loading", "compiler"],
)
def test_calls_with_another_reason_are_left_alone(
    main: str, gpu: str, others: tuple[str, ...]
) -> None:
    assert find(HostPreempted, steps(main, gpu, *others), legend=LEGEND) == ()
    if others:
        assert find(HostPreempted, steps(main, gpu), legend=LEGEND)


def test_loading_a_kernel_is_no_preemption() -> None:
    main = "oF.F.Fo.FFFFFFFFFFFFFFFFFFFFFFFFFo"
    known = steps(main, "KKKKKKKK.........................K")
    new = "|".join(f"KKKKKKKK.........................{number}" for number in "1234")
    assert find(HostPreempted, known, legend=LEGEND)
    assert find(HostPreempted, steps(main, new), legend=LEGEND) == ()


def test_two_late_calls_may_be_chance() -> None:
    slow = "ov.v.vo.vvvvvvvvvvvvvvvvvvvvvvvvvo"
    usual = "ov.v.vo.........................vo"
    gpu = "KKKKKKKK.........................K"
    three = steps("|".join((slow, slow, slow, usual)), gpu)
    assert find(HostPreempted, three, legend=LEGEND)
    two = steps("|".join((slow, slow, usual, usual)), gpu)
    assert find(HostPreempted, two, legend=LEGEND) == ()


def test_just_below_and_just_above_the_limit() -> None:
    # 24 of 34 cells.
    assert find(HostPreempted, SLOW, legend=LEGEND, settings={"minimum_share": 0.71}) == ()
    assert find(HostPreempted, SLOW, legend=LEGEND, settings={"minimum_share": 0.70})
