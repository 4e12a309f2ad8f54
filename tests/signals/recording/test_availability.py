from __future__ import annotations

import io

import pytest

from tb_perfadvisor.ingest.compile_log.reader import read_compile_log
from tb_perfadvisor.signals import Need, Options, Signals, why_missing
from tb_perfadvisor.signals.recording.availability import shows_communication, shows_input
from tb_perfadvisor.signals.recording.hints import HINTS, hint_for
from tb_perfadvisor.signals.recording.needs import CPU_ONLY
from tb_perfadvisor.signals.workload.workload import Workload
from tb_perfadvisor.testing import TraceBuilder, draw, ms, run_of
from tb_perfadvisor.trace import Source
from tests.support.compile_logs import example_log

ON_GPU = """
    cell 1ms
    step  |......|......|
    main  |DDoB..|DDoB..|
    gpu 7 |...KKK|...KKK|
"""
ON_CPU = """
    cell 1ms
    step  |......|......|
    main  |DDOO..|DDOO..|
"""


def unmet(signals: Signals) -> set[Need]:
    return {need for need in Need if why_missing(signals, need) is not None}


def test_a_gpu_profile_has_nearly_all() -> None:
    signals = Signals(run_of(draw(ON_GPU, device="NVIDIA H100 80GB HBM3")))
    assert unmet(signals) == {
        Need.ALL_DEVICES,  # with one process and device
        Need.ALL_RANKS,
        Need.SEVERAL_RANKS,
        Need.BARRIERS,
        Need.NAMELESS_TIME,
        Need.FILE_WRITES,
        Need.COMPILE_LOG,
        Need.COMPILED_REGIONS,
        Need.COLLECTIVES,
        Need.CPU_PROGRAM,
        Need.RUN_LINES,
        *(Need.RUN_TIMERS, Need.RUN_INPUT, Need.RUN_RANKS),
        Need.EXAMINED_STEPS,
        Need.INFEED,
        Need.INPUT_STAGES,
        Need.ITERATORS,
        Need.MEMORY,
        Need.DISPATCH,
        Need.PYTHON_FRAMES,
        Need.SEVERAL_STEPS,
        Need.MEMORY_CHANGES,
        *(Need.MEMORY_SNAPSHOT, Need.MEMORY_HISTORY, Need.SNAPSHOT_CAPACITY),
        Need.SHAPES,
        Need.TILED_LAYOUTS,
        Need.PROGRAMS,
        Need.XLA_OPERATIONS,
        Need.MATRIX_UNIT,  # of recorders that write sums
    }


def test_a_log_of_the_compiler_says_nothing_of_what_ran() -> None:
    source = Source(path="run/log", format="torch-compile-log")
    signals = Signals(run_of(read_compile_log(io.BytesIO(example_log()), source)))
    assert why_missing(signals, Need.COMPILE_LOG) is None
    for need in (Need.KERNELS, Need.STEPS, Need.MEMORY, Need.PEAKS):
        missing = why_missing(signals, need)
        assert missing is not None
        assert "not what ran" in missing.reason
        assert missing.remedy.startswith("Record a profile of the same run with torch.profiler")


def test_a_program_on_the_cpu_lacks_the_device_and_cannot_record_one() -> None:
    signals = Signals(run_of(draw(ON_CPU)))
    assert {Need.DEVICE_EVENTS, Need.PEAKS, Need.KERNEL_PRECISION, Need.MEMORY} <= unmet(signals)
    missing = why_missing(signals, Need.PEAKS)
    assert missing is not None
    assert (missing.reason, missing.remedy) == (CPU_ONLY, "")
    assert not {Need.WORK, Need.INPUT, Need.STEPS, Need.HOST_EVENTS} & unmet(signals)


def test_missing_device_events_tell_how_to_record_them() -> None:
    builder = TraceBuilder().step(0, 0, ms(2)).launch(0, ms(1))
    missing = why_missing(Signals(run_of(builder.build())), Need.WORK)
    assert missing is not None
    assert missing.reason == "the profile has no events of the device"
    assert "ProfilerActivity.CUDA" in missing.remedy


@pytest.mark.parametrize(
    ("framework", "words"),
    [
        ("pytorch", "prof.step()"),
        ("tensorflow", "tf.profiler.experimental.Trace"),
        ("jax", "jax.profiler.StepTraceAnnotation"),
        ("unknown", "Mark the steps"),
    ],
)
def test_remedies_use_the_terms_of_the_framework(framework: str, words: str) -> None:
    assert words in hint_for(Need.STEPS, Workload(framework, ()))


def test_every_need_has_an_entry() -> None:
    assert set(HINTS) == set(Need)
    assert len({need.value for need in Need}) == len(Need)


def test_user_options_meet_a_need() -> None:
    run = run_of(draw(ON_CPU, world_size=2))
    assert why_missing(Signals(run), Need.LINK_BANDWIDTH) is not None
    with_options = Signals(run, options=Options(parameters=7, link_bandwidth_bytes_per_s=1e9))
    assert why_missing(with_options, Need.LINK_BANDWIDTH) is None
    assert why_missing(with_options, Need.COLLECTIVE_SIZES) is None


@pytest.mark.parametrize("need", [Need.INPUT_STAGES, Need.FILE_READS])
def test_without_fetches_their_inside_lacks_no_frames(need: Need) -> None:
    signals = Signals(run_of(draw(ON_GPU.replace("D", "."), device="NVIDIA H100 80GB HBM3")))
    missing, fetches = why_missing(signals, need), why_missing(signals, Need.INPUT)
    assert missing is not None
    assert fetches is not None
    assert (missing.need, missing.reason, missing.remedy) == (
        need,
        fetches.reason,
        fetches.remedy,
    )
    recorded = why_missing(Signals(run_of(draw(ON_GPU))), Need.INPUT_STAGES)
    assert recorded is not None
    assert "contain no Python frames" in recorded.reason


def test_missing_fetches_do_not_mean_no_waiting() -> None:
    signals = Signals(run_of(draw(ON_CPU.replace("DD", ".."))))
    assert why_missing(signals, Need.INPUT) is not None
    assert not shows_input(signals)


def test_communication_is_unknown_for_one_of_several_ranks() -> None:
    assert shows_communication(Signals(run_of(draw(ON_GPU))))
    assert not shows_communication(Signals(run_of(draw(ON_GPU, world_size=8))))


NOTHING_TO_SET = {
    *(Need.COPIES, Need.COLLECTIVES, Need.STEP_ENDS, Need.INFEED, Need.ITERATORS),
    *(Need.BARRIERS, Need.COMPILE_LOG, Need.NAMELESS_TIME, Need.FILE_WRITES),
}
"""A profile lacks these because the program has none, whatever the recorder's options."""


@pytest.mark.parametrize("need", sorted(set(Need) - NOTHING_TO_SET, key=lambda need: need.value))
def test_every_need_says_how_to_meet_it(need: Need) -> None:
    assert hint_for(need, Workload("pytorch", ())).endswith(".")
