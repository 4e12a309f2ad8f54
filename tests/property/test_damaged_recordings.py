"""Sound recordings, damaged in ways that leave evidence: it is noticed, or no figure is wrong.

`docs/damaged-files.md` lists damage that leaves none.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from hypothesis import given
from hypothesis import strategies as st

from tb_perfadvisor.contract import model
from tb_perfadvisor.engine.analyze import analyze_run
from tb_perfadvisor.engine.config import Config
from tb_perfadvisor.report.build import build_report
from tb_perfadvisor.soundness import examined
from tb_perfadvisor.testing import ms, run_of, us
from tb_perfadvisor.trace import Trace
from tests.support.device_loops import KERNELS, loop
from tests.support.kineto_files import event, kernel, read, to_bytes
from tests.support.night import examples

STEPS = 6
CLOSE = 0.05
NOTICED = {
    "device-clock-shift",
    "dropped-events",
    "empty-profile",
    "impossible-durations",
    "lost-steps",
    "not-recorded",
    "recording-ended-early",
    "too-little-data",
    "truncated-file",
}


def report_of(trace: Trace) -> model.Report:
    return build_report(analyze_run(run_of(examined(trace)), Config()), Config())


def figures(report: model.Report) -> dict[str, float | None]:
    overview = report.overview
    return {
        "step": overview.step_time_ns,
        "busy": overview.device_busy_share,
        "compute": overview.device_compute_share,
        "copies": overview.exposed_copy_share,
    }


@cache
def sound() -> dict[str, float | None]:
    report = report_of(loop(STEPS).build())
    assert report.trust.level == "solid"
    return figures(report)


def check(report: model.Report, expected: Callable[[], dict[str, float | None]] = sound) -> None:
    """Each figure is within 5 %, or the report says what is wrong with the recording."""
    is_noticed = bool(NOTICED & {note.id for note in report.notes}) or report.trust.level != "solid"
    for name, right in expected().items():
        found = figures(report)[name]
        # A share of a hundredth is close to one of none.
        is_close = (
            found is not None
            and right is not None
            and abs(found - right) <= CLOSE * max(abs(right), 0.01 if name != "step" else 0)
        )
        assert is_close or is_noticed, f"{name}: {found} instead of {right}"


@examples(25)
@given(shift_us=st.integers(-2_000_000, 2_000_000))
def test_a_shifted_clock(shift_us: int) -> None:
    report = report_of(loop(STEPS, shift_ns=us(shift_us)).build())
    check(report)
    # It is repaired, too: nothing but the idle time between host and device can be off.
    for name, right in sound().items():
        found = figures(report)[name]
        assert found is not None
        assert right is not None
        assert abs(found - right) <= CLOSE * max(right, 1 if name != "step" else 0), name


@examples(25)
@given(
    step=st.integers(0, STEPS - 1),
    k=st.integers(0, KERNELS - 1),
    lasts_us=st.integers(0, 5_000_000),
    wait=st.sampled_from(["cudaStreamSynchronize", "cudaDeviceSynchronize"]),
)
def test_a_stretched_event(step: int, k: int, lasts_us: int, wait: str) -> None:
    # Too short a duration leaves no evidence, and 1 of 8 ms is more than 5 %.
    lasts_ns = max(us(lasts_us), ms(1))
    report = report_of(loop(STEPS, stretched=(step, k, lasts_ns), waits=wait).build())
    check(report)
    assert abs((report.overview.device_busy_share or 0) - (sound()["busy"] or 0)) <= CLOSE


@examples(25)
@given(
    lost=st.frozensets(
        st.tuples(st.integers(0, STEPS - 1), st.integers(0, KERNELS - 1)),
        max_size=STEPS * KERNELS,
    ),
    launch=st.sampled_from(["cudaLaunchKernel", "cudaGraphLaunch", "hipExtLaunchKernel"]),
)
def test_lost_kernels(lost: frozenset[tuple[int, int]], launch: str) -> None:
    report = report_of(loop(STEPS, lost=lost, launch=launch).build())
    check(report)
    # Lost work is never idle: what is left of it is unknown.
    busy = report.overview.device_busy_share
    assert busy is None or busy >= (1 - CLOSE) * (sound()["busy"] or 0) - CLOSE


def kineto_loop() -> bytes:
    """The same steps as a file."""
    events = []
    for step in range(STEPS):
        at = 10_000 * (step + 1)
        events.append(event(f"ProfilerStep#{step}", at, 10_000, "user_annotation"))
        for k in range(KERNELS):
            number = 100 * step + k + 1
            begun = at + 100 + 20 * k
            events.append(event("aten::mm", begun - 5, 15))
            launch = {"correlation": number}
            events.append(event("cudaLaunchKernel", begun, 8, "cuda_runtime", args=launch))
            events.append(kernel("gemm", at + 210 + 1000 * k, 1000, correlation=number))
        events.append(event("cudaDeviceSynchronize", at + 400, 7_820, "cuda_runtime"))
    return to_bytes(events, deviceProperties=[{"id": 0, "name": "Tesla V100"}])


@cache
def sound_file() -> dict[str, float | None]:
    return figures(report_of(read(kineto_loop())))


@examples(25)
@given(share=st.floats(0.05, 1.0))
def test_a_file_that_is_cut_anywhere(share: float) -> None:
    data = kineto_loop()
    check(report_of(read(data[: round(share * len(data))])), sound_file)
