from __future__ import annotations

import pytest

from tb_perfadvisor.instrument.loader_workers import WorkerBatch
from tb_perfadvisor.rules.evidence.tfdata_pipelines import changes_of_parallel_map
from tb_perfadvisor.rules.finding import Finding
from tb_perfadvisor.rules.input.loading import InputSharesCores
from tb_perfadvisor.rules.input.stalls import InputStall
from tb_perfadvisor.signals import reference_worker
from tb_perfadvisor.testing import TraceBuilder, check_rule, find, ms, run_of
from tb_perfadvisor.testing.symbols import function_run, host, iterator
from tb_perfadvisor.trace import EventKind, Trace

STEPS = 3
NEARLY = 1e-3
"""The calls around those that are drawn take microseconds."""


def training(
    step_ms: int,
    *,
    step_threads: int = 2,
    input_threads: int = 2,
    cores: int = 2,
    input_ms: int | None = None,
    operator: str = "",
    chain: str = "Root::Prefetch::BatchV2::ForeverRepeat::ParallelMapV2",
    calls: int = 1,
) -> Trace:
    """Steps of operators on some threads, while others run the pipeline's function.

    Args:
        step_ms: Length of a step; its operators take all of it.
        step_threads: Threads that run operators.
        input_threads: Threads that run the function of a map.
        cores: Cores of the machine.
        input_ms: How long the function's threads are busy in each step; by default, all of it.
        operator: An operator within the function, such as `PyFunc`.
        chain: The iterators, down to the map.
        calls: Calls of the function on each thread and in each step.
    """
    builder, run = TraceBuilder("tensorflow"), 0
    busy = ms(step_ms if input_ms is None else input_ms)
    for number in range(STEPS):
        start = ms(step_ms) * number
        builder.step(number, start, start + ms(step_ms))
        fetch = host("IteratorGetNextOp::DoCompute", EventKind.INPUT_WAIT)
        builder.add(fetch, start, start + 1000, thread="main")
        for thread in range(step_threads):
            name = "model/conv/Conv2D:Conv2D"
            builder.operator(name, start, start + ms(step_ms), thread=f"step {thread}")
        waits = iterator("Root", iterator=1, cores=cores)
        builder.add(waits, start, start + 900, thread="main")
        # The thread of the batch waits for those of the map.
        for place in range(2, chain.count("::") + 2):
            name = "::".join(chain.split("::")[:place])
            call = iterator(name, iterator=place, parent=place - 1, cores=cores)
            builder.add(call, start, start + busy, thread="batch")
        for thread in range(input_threads):
            for call in range(calls):
                run += 1
                begin, end = (start + busy * at // calls for at in (call, call + 1))
                builder.add(function_run(run), begin, begin + 10, thread="batch")
                executes = function_run(run, "ExecutorState::Process")
                builder.add(executes, begin, end, thread=f"pool {thread}")
                if operator:
                    work = host(f"{operator}:{operator}", EventKind.INPUT_WORK)
                    builder.add(work, begin, end, thread=f"pool {thread}")
    return builder.build()


def found(trace: Trace) -> Finding:
    (finding,) = find(InputSharesCores, trace) or ()
    return finding


def test_saves_what_the_fix_saves() -> None:
    # Four threads share two cores for 20 ms: the step's operators need 20 ms on one core, or 10 ms
    # on both.
    checked = check_rule(
        InputSharesCores,
        slow=training(20),
        fixed=training(10, input_threads=0),
        saves=ms(10),
        fixed_applies=False,  # no iterators
        exactly=False,
        scales=False,
    )
    (finding,) = checked.findings
    assert finding.summary == (
        "Preparing input takes 10.0 ms of each step (50.0 %) from the step's operators: it runs on"
        " the same 2 cores, mostly in ParallelMap (6 calls of 20.0 ms in the profile)."
    )
    assert checked.expected_ns == pytest.approx(ms(10), rel=NEARLY)
    assert ".cache()" in finding.remedies[0].snippet
    # Nothing waits.
    assert find(InputStall, training(20)) == ()


def test_a_third_of_the_threads_take_a_third_of_the_cores() -> None:
    # Three threads on two cores for 21 ms: each gets 14 ms, that of input divided by two is 7.
    finding = found(training(21, input_threads=1))
    assert finding.saving is not None
    assert finding.saving.expected_ns == pytest.approx(STEPS * ms(7), rel=NEARLY)
    # Three quarters at least; and half of its 21 ms at most, if it never waits for a core.
    assert finding.saving.low_ns == pytest.approx(STEPS * ms(5.25), rel=NEARLY)
    assert finding.saving.high_ns == pytest.approx(STEPS * ms(10.5), rel=NEARLY)


def test_idle_cores_are_not_taken() -> None:
    # One thread of each, on eight cores: if the operator uses all eight, it loses an eighth of
    # them. Three quarters of 20 / 8 = 1.875 ms are expected, 9 %.
    finding = found(training(20, step_threads=1, input_threads=1, cores=8))
    assert finding.saving is not None
    assert finding.saving.expected_ns == pytest.approx(STEPS * ms(1.875), rel=NEARLY)
    assert finding.saving.low_ns == 0
    # Operators do not use 32 cores.
    assert find(InputSharesCores, training(20, step_threads=1, input_threads=4, cores=32)) == ()


def test_just_below_and_just_above_the_limit() -> None:
    # 3 of 20 ms on one thread, on two cores that 43 ms of threads share: 1.4 ms, 7.0 %.
    trace = training(20, input_threads=1, input_ms=3)
    assert find(InputSharesCores, trace, settings={"minimum_share": 0.071}) == ()
    assert find(InputSharesCores, trace, settings={"minimum_share": 0.069})


def test_python_functions_may_wait() -> None:
    # Of a call of 8 ms, 0.2 are the call and an eighth of the rest is a guess: 1.175.
    python = training(24, operator="PyFunc", input_threads=1, calls=3)
    assert find(InputSharesCores, python) == ()
    finding = found(training(24, operator="PyFunc", input_threads=1, calls=24))
    assert finding.saving is not None
    # Of 1 ms, 0.3 ms: 24 x 0.3 / 2 cores = 3.6, while three threads share two cores: 2.4 ms.
    assert finding.saving.expected_ns == pytest.approx(STEPS * ms(2.4), rel=NEARLY)
    assert finding.saving.low_ns < ms(0.01)
    assert "without Python's lock" in finding.remedies[0].text


def test_reading_files_takes_no_core() -> None:
    assert find(InputSharesCores, training(20, operator="ReadFile")) == ()


def test_tiny_functions_should_take_batches() -> None:
    chain = "Root::Prefetch::BatchV2::ParallelMapV2"
    finding = found(training(20, chain=chain, calls=50))
    assert "dataset.batch(batch_size)" in finding.remedies[0].snippet
    assert not any(".cache()" in remedy.snippet for remedy in finding.remedies)


def with_workers(cpu_us: int, *, cores: int, threads: int) -> Trace:
    """Steps of 40 ms, each with a batch that a timed worker made."""
    builder = TraceBuilder()
    mark = WorkerBatch(0, 2, cores, wall_us=60_000, cpu_us=cpu_us, files=0, read_bytes=0)
    for number in range(STEPS):
        start = ms(40 * number)
        builder.step(number, start, start + ms(40))
        builder.host(
            EventKind.INPUT_WAIT,
            "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__",
            start,
            start + 10_000,
        )
        builder.annotation(mark.mark(threads), start + 5_000, start + 5_100)
        builder.operator("aten::conv2d", start + 10_000, start + ms(40), launches=False)
    return builder.build()


def test_workers_take_cores_from_a_step_with_several_threads() -> None:
    finding = found(with_workers(40_000, cores=2, threads=2))
    assert finding.saving is not None
    # 40 ms for each batch, on two cores, beside 39.99 ms of operators in 40.
    assert finding.saving.expected_ns == int(STEPS * ms(40) / 2 * 39.99 / 40)
    assert "where 2 workers compute 40.0 ms for each batch" in finding.summary
    assert any("set_num_threads" in remedy.snippet for remedy in finding.remedies)


def test_an_operator_ends_with_its_slowest_thread() -> None:
    # 16 ms for each batch, beside 39.99 ms of operators in 40: 15.996 ms delay one thread, or
    # 7.998 ms each of two.
    finding = found(with_workers(16_000, cores=2, threads=2))
    assert finding.saving is not None
    each_ns = STEPS * ms(16) * 39.99 / 40 / 2
    assert finding.saving.low_ns == int(0.75 * each_ns)
    assert finding.saving.expected_ns == int(0.25 * each_ns + 0.75 * 2 * each_ns)
    assert finding.saving.high_ns == int(2 * each_ns)


def test_workers_on_no_cores_tell_nothing() -> None:
    assert find(InputSharesCores, with_workers(16_000, cores=0, threads=2)) == ()


def test_workers_beside_a_step_with_one_thread_take_nothing() -> None:
    # 16 of 40 ms on the second core.
    assert find(InputSharesCores, with_workers(16_000, cores=2, threads=1)) == ()


def test_workers_on_idle_cores_take_nothing() -> None:
    # One worker is busy on average, and 64 - 8 cores are free.
    assert find(InputSharesCores, with_workers(40_000, cores=64, threads=8)) == ()


def test_what_helps_a_pipeline_that_runs_ahead_already() -> None:
    def changes(chain: str) -> tuple[str, ...]:
        trace = training(24, operator="PyFunc", calls=24, chain=chain)
        return changes_of_parallel_map(reference_worker(run_of(trace)))

    ahead = "Root::Prefetch::BatchV2::ForeverRepeat::ParallelMapV2"
    assert changes(ahead)[:2] == ("tensorflow-input", "parallel-python-input")
    assert changes(ahead.replace("Prefetch::", "")) == ()
    assert changes(ahead.replace("ParallelMapV2", "Map")) == ()
