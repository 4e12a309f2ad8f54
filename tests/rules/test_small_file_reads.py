from __future__ import annotations

import pytest

from tb_perfadvisor.instrument.loader_workers import WorkerBatch
from tb_perfadvisor.rules.input.loading import SmallFileReads
from tb_perfadvisor.testing import TraceBuilder, check_rule, find, ms
from tb_perfadvisor.testing.symbols import Symbol, host, iterator
from tb_perfadvisor.trace import EventKind, Trace


def frame(name: str) -> Symbol:
    return host(name, EventKind.PYTHON)


# Names that PyTorch 2.13 records.
LEGEND = {
    "D": host("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", EventKind.INPUT_WAIT),
    "f": frame("torch/utils/data/_utils/fetch.py(49): fetch"),
    "n": frame("<built-in function open>"),
    "r": frame("<built-in method read of _io.BufferedReader object at 0x7f7b35aa5170>"),
    "x": frame("<built-in method __exit__ of _io.BufferedReader object at 0x7f7b35aa5170>"),
}
# Four samples, each in its own file: 1 ms to open, 1 ms to read, 1 ms to close.
SLOW = """
    cell 1ms
    step   |..................|..................|..................|
    main   |DDDDDDDDDDDDoo....|DDDDDDDDDDDDoo....|DDDDDDDDDDDDoo....|
    main   |ffffffffffff......|ffffffffffff......|ffffffffffff......|
    main   |nrxnrxnrxnrx......|nrxnrxnrxnrx......|nrxnrxnrxnrx......|
    gpu 7  |.............KKKKK|.............KKKKK|.............KKKKK|
"""
# The same bytes from a file that is already open.
FIXED = """
    cell 1ms
    step   |..........|..........|..........|
    main   |DDDDoo....|DDDDoo....|DDDDoo....|
    main   |ffff......|ffff......|ffff......|
    main   |r'''......|r'''......|r'''......|
    gpu 7  |.....KKKKK|.....KKKKK|.....KKKKK|
"""
FOUR = {"minimum_files": 4.0}


def test_saves_what_the_fix_saves() -> None:
    checked = check_rule(
        SmallFileReads, slow=SLOW, fixed=FIXED, saves="8ms", legend=LEGEND, settings=FOUR
    )
    finding = checked.findings[0]
    assert "opens and reads 4 files per step" in finding.summary
    assert finding.saving is not None
    # Opening and closing four files takes 8 ms, reading them another 4: over three steps.
    assert finding.saving.low_ns == 24_000_000
    assert finding.saving.high_ns == 36_000_000


def test_few_large_files_are_left_alone() -> None:
    assert find(SmallFileReads, SLOW, legend=LEGEND) == ()  # four are below the limit


def test_without_python_frames_it_is_not_applicable() -> None:
    plain = SLOW.replace("f", ".").replace("nrx", "...")
    assert find(SmallFileReads, plain, legend=LEGEND, settings=FOUR) is None


def test_just_below_and_just_above_the_limits() -> None:
    # 8 of 18 ms: 44.4 %.
    for settings, count in (
        (FOUR | {"minimum_share": 0.44}, 1),
        (FOUR | {"minimum_share": 0.45}, 0),
        ({"minimum_files": 4.0}, 1),
        ({"minimum_files": 4.1}, 0),
    ):
        assert len(find(SmallFileReads, SLOW, legend=LEGEND, settings=settings) or ()) == count


def tf_data(files: int, *, read_ms: float) -> Trace:
    """Two steps that wait for a map which reads a file for each of many elements."""
    builder = TraceBuilder("tensorflow")
    at = 0
    for step in range(2):
        end = at + ms(files * read_ms + 4)
        waited = at + ms(files * read_ms)
        builder.step(step, at, end)
        builder.host(EventKind.INPUT_WAIT, "IteratorGetNextOp::DoCompute", at, waited)
        builder.add(iterator("Root::Map", iterator=1), at, waited, thread="main")
        for number in range(files):
            begin = at + ms(number * read_ms)
            builder.host(
                EventKind.INPUT_WORK, "ReadFile:ReadFile", begin, begin + ms(read_ms), thread="tf"
            )
        builder.operator("model/MatMul:MatMul", waited, waited + ms(0.1))
        builder.kernel("gemm", waited, end)
        at = end
    return builder.build()


def test_finds_file_reads_of_tf_data_operations() -> None:
    """Also fires on a recording: TensorFlow 2.21, `tf.io.read_file` of 128 files of 7 KB for a
    batch, in a map of one call at a time: 4 of 15 ms of each step."""
    check_rule(
        SmallFileReads,
        slow=tf_data(16, read_ms=0.5),
        fixed=tf_data(1, read_ms=0.1),
        saves=ms(16 * 0.5 - 0.1),
        tolerance=0.02,
        # The fixed pipeline still reads one file instead of sixteen.
        exactly=False,
    )


@pytest.mark.parametrize(("files", "count"), [(7, 0), (8, 1)])
def test_few_files_of_tf_data_are_left_alone(files: int, count: int) -> None:
    assert len(find(SmallFileReads, tf_data(files, read_ms=0.5)) or ()) == count


def with_workers(
    *,
    stall_ms: int,
    wall_ms: int = 60,
    cpu_ms: int = 10,
    files: int = 48,
    read_bytes: int = -1,
    samples: int = -1,
    timed: bool = True,
) -> Trace:
    """Three steps of 20 ms that wait for a batch of two workers before."""
    builder = TraceBuilder()
    mark = WorkerBatch(0, 2, 8, 1000 * wall_ms, 1000 * cpu_ms, files, read_bytes, samples)
    for number in range(3):
        start = ms(number * (stall_ms + 20))
        end = start + ms(stall_ms)
        builder.step(number, start, end + ms(20))
        builder.host(
            EventKind.INPUT_WAIT,
            "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__",
            start,
            end,
        )
        if timed:
            builder.annotation(mark.mark(threads=8), end - 2_000, end - 1_000)
        builder.operator("aten::conv2d", end, end + ms(20))
        builder.kernel("conv", end, end + ms(20))
    return builder.build()


def test_workers_that_wait_for_files() -> None:
    # Two workers need 30 ms for a batch, and 5 ms if they only compute: no step waits then.
    checked = check_rule(
        SmallFileReads,
        slow=with_workers(stall_ms=10),
        fixed=with_workers(stall_ms=0, wall_ms=10, files=1),
        saves="10ms",
        exactly=False,
        scales=False,  # marks are text
        fixed_applies=False,
    )
    (finding,) = checked.findings
    assert finding.summary == (
        "The step waits 10.0 ms of each step (33.3 %) for 2 workers. They open 48 files for each"
        " batch, and compute only 10.0 ms of the 60.0 ms that it takes."
    )
    assert [("shards" in r.snippet, "gcsfuse" in r.snippet) for r in finding.remedies[:1]] == [
        (True, False)
    ]
    assert any("--file-cache-max-size-mb" in remedy.snippet for remedy in finding.remedies)


def test_size_of_files_decides_if_it_is_known() -> None:
    """On either side of the limit of 8 MiB for each of 48 files."""
    whole = 48 * (8 << 20)
    (finding,) = find(SmallFileReads, with_workers(stall_ms=10, read_bytes=whole, samples=24)) or ()
    assert "48 files for each batch (2 per sample, 8.00 MiB each), and compute" in finding.summary
    assert find(SmallFileReads, with_workers(stall_ms=10, read_bytes=whole + 48)) == ()


def test_steps_that_use_up_batches_are_no_steady_state() -> None:
    # Two workers need 50 ms for a batch, and the steps take 10 + 20.
    (finding,) = find(SmallFileReads, with_workers(stall_ms=10, wall_ms=100)) or ()
    assert finding.summary.endswith(
        "They make a batch every 50.0 ms, so these steps of 30.0 ms use up batches that were ready:"
        " later steps wait longer."
    )


def test_computing_remains() -> None:
    # 50 of 100 ms in two workers: 25 ms for a batch, and the step waits 5 of its 30 ms.
    (finding,) = find(SmallFileReads, with_workers(stall_ms=30, wall_ms=100, cpu_ms=50)) or ()
    assert finding.saving is not None
    assert finding.saving.expected_ns == 3 * ms(30 - 5)
    assert finding.saving.high_ns == 3 * ms(30)


@pytest.mark.parametrize("trace", [
    with_workers(stall_ms=10, files=7),
    with_workers(stall_ms=10, cpu_ms=31),
    with_workers(stall_ms=1),
], ids=["few files", "computes", "hardly waits"])  # fmt: skip
def test_other_workers_are_left_alone(trace: Trace) -> None:
    assert find(SmallFileReads, trace) == ()


def test_without_marks_it_says_how_to_find_out() -> None:
    (finding,) = find(SmallFileReads, with_workers(stall_ms=10, timed=False)) or ()
    assert (finding.saving, finding.severity) == (None, "low")
    assert "time_workers(loader)" in finding.remedies[0].snippet
    assert find(SmallFileReads, with_workers(stall_ms=1, timed=False)) == ()
