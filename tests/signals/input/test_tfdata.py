from __future__ import annotations

from pathlib import Path

import pytest

from tb_perfadvisor.signals import Cause, Signals
from tb_perfadvisor.signals.input.tfdata import (
    READERS,
    Pipelines,
    element_bytes,
    find_pipelines,
    function_operators,
    kind_of,
    parents_of_paths,
    python_functions,
    stall_parts,
    tfdata,
)
from tb_perfadvisor.testing import draw, run_of
from tb_perfadvisor.testing.symbols import function_run, host, iterator, operator
from tb_perfadvisor.trace import EventKind, Trace
from tb_perfadvisor.trace.intervals import EMPTY, join, total_ns
from tests.support.corpus_traces import read

# A step waits 8 ms: 1 ms before the prefetch thread starts, 5 ms for the map, including 2 ms for
# the file, and the last 2 ms for the prefetch itself.
AHEAD = """
    cell 1ms
    step     |............|
    main     |DDDDDDDDo...|
    main     |RRRRRRRR....|
    main     |PPPPPPPP....|
    producer |.MMMMM......|
    producer |..TT........|
    gpu 7    |........KKKK|
"""
CHAIN = {
    "R": iterator("Root", iterator=1, cores=4, threads=8, memory_bytes=5_000_000),
    "P": iterator("Root::Prefetch", iterator=2, parent=1, buffer_size=2, buffered=0),
    "M": iterator("Root::Prefetch::MapV2", iterator=3, parent=2, dataset="MapDataset:1"),
    "T": iterator("Root::Prefetch::MapV2::FlatMap[0]::TFRecord", iterator=5, parent=4),
}


def signals_of(text: str, **legend: object) -> Signals:
    return Signals(run_of(draw(text, legend=CHAIN | legend, framework="tensorflow")))


def stalls_ms(pipelines: Pipelines) -> dict[str, float]:
    return {path: pipelines.stall_ns(node) / 1e6 for node, path in enumerate(pipelines.path)}


def test_a_stall_belongs_to_the_deepest_iterator_called() -> None:
    signals = signals_of(AHEAD)
    pipelines = tfdata(signals)
    assert stalls_ms(pipelines) == {
        "Root": 0,
        "Root::Prefetch": 3,
        "Root::Prefetch::MapV2": 3,
        # Its FlatMap was not recorded, so its parent is the next iterator up the chain.
        "Root::Prefetch::MapV2::FlatMap::TFRecord": 2,
    }
    assert pipelines.parent.tolist() == [-1, 0, 1, 2]
    assert pipelines.kind == ("Root", "Prefetch", "Map", "TFRecord")
    assert (pipelines.cores, pipelines.threads, pipelines.memory_bytes) == (4, 8, 5_000_000)
    assert join(*pipelines.stall).tolist() == signals.attribution.intervals[Cause.INPUT].tolist()
    assert pipelines.is_ahead(3)
    assert not pipelines.is_ahead(1)


def test_self_time_excludes_calls_on_the_same_thread() -> None:
    pipelines = tfdata(signals_of(AHEAD))
    # In order of the chain: 8-8, 8, 5-2 and 2 ms. The prefetch thread is not its caller's thread.
    assert (pipelines.self_ns / 1e6).tolist() == [0, 8, 3, 2]
    assert pipelines.count.tolist() == [1, 1, 1, 1]
    assert pipelines.dataset[2] == "MapDataset:1"


def test_background_reads_and_preprocessing_split_the_stall() -> None:
    parts = stall_parts(signals_of(AHEAD))
    assert total_ns(parts.reading_ahead) == 2_000_000
    assert total_ns(parts.reading_on_demand) == 0
    assert total_ns(parts.preprocessing) == 6_000_000
    assert total_ns(parts.unattributed) == 0


def test_reads_on_the_waiting_thread_are_on_demand() -> None:
    trace = """
        cell 1ms
        step  |......|
        main  |DDDo..|
        main  |TT....|
        gpu 7 |...KKK|
    """
    parts = stall_parts(signals_of(trace, T=iterator("Root::TextLine", iterator=9)))
    assert total_ns(parts.reading_on_demand) == 2_000_000
    # No iterator is called in the last millisecond of the fetch.
    assert total_ns(parts.unattributed) == 1_000_000


def test_epochs_and_files_share_a_node() -> None:
    trace = """
        cell 1ms
        step  |......|......|
        main  |Do....|Do....|
        main  |X.....|Y.....|
        gpu 7 |.KKKKK|.KKKKK|
    """
    pipelines = tfdata(
        signals_of(
            trace,
            X=iterator("Root::ForeverRepeat[0]::Interleave[3]::Map", iterator=1),
            Y=iterator("Root::ForeverRepeat[1]::Interleave[0]::Map", iterator=2),
        )
    )
    assert pipelines.path == ("Root::ForeverRepeat::Interleave::Map",)
    assert (pipelines.count.tolist(), pipelines.repeats.tolist()) == ([2], [2])


def test_pipelines_of_different_datasets_have_separate_nodes() -> None:
    trace = """
        cell 1ms
        step  |......|......|
        main  |Do....|Do....|
        main  |X.....|Y.....|
        gpu 7 |.KKKKK|.KKKKK|
    """
    pipelines = tfdata(
        signals_of(
            trace,
            X=iterator("Root", iterator=1, dataset="PrefetchDataset:3"),
            Y=iterator("Root", iterator=2, dataset="PrefetchDataset:9"),
        )
    )
    assert pipelines.dataset == ("PrefetchDataset:3", "PrefetchDataset:9")


def test_function_runs_belong_to_the_iterator_that_starts_them() -> None:
    # The batch's thread calls the source and starts runs, which other threads execute. Whatever an
    # executor does after the callback of a run does not count.
    trace = """
        cell 1ms
        step   |..........|
        main   |DDDDDDo...|
        main   |BBBBBB....|
        runner |SfSg......|
        pool 1 |.EEEEEE...|
        pool 1 |...w......|
        pool 2 |....FFF...|
        pool 2 |....p.....|
        gpu 7  |......KKKK|
    """
    signals = signals_of(
        trace,
        B=iterator("Root::MapAndBatch", iterator=1),
        S=iterator("Root::MapAndBatch::Range", iterator=2, parent=1),
        f=function_run(71),
        g=function_run(72),
        E=function_run(71, "ExecutorState::Process"),
        w=function_run(71, "ExecutorDoneCallback"),
        F=function_run(72, "ExecutorState::Process"),
        p=operator("PyFunc:PyFunc"),
    )
    pipelines = tfdata(signals)
    batch = pipelines.path.index("Root::MapAndBatch")
    assert pipelines.function_count[batch] == 2
    # 2 ms up to the first callback, and 3 ms for the second run.
    assert pipelines.function_ns[batch] == 5_000_000
    assert pipelines.work[batch].tolist() == [[1_000_000, 3_000_000], [4_000_000, 7_000_000]]
    assert pipelines.function_count.sum() == 2
    (python,) = python_functions(signals).tolist()
    assert signals.trace.name(python) == "PyFunc:PyFunc"
    assert python in function_operators(signals).tolist()


def test_operators_of_the_model_are_not_functions_of_the_pipeline() -> None:
    trace = """
        cell 1ms
        step    |.....|
        main    |Dop..|
        main    |R....|
        tf_data |q....|
        gpu 7   |.KKKK|
    """
    signals = signals_of(
        trace, p=operator("PyFunc:PyFunc"), q=host("PyFunc:PyFunc", EventKind.INPUT_WORK)
    )
    (row,) = python_functions(signals).tolist()
    assert signals.trace.events.kind[row] == EventKind.INPUT_WORK


def test_a_trace_without_tf_data_has_no_pipelines() -> None:
    signals = Signals(run_of(draw("cell 1ms\nstep |DD|\nmain |Do|".replace("|DD|", "|..|"))))
    assert len(tfdata(signals)) == 0
    assert tfdata(signals).bottleneck == -1


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("Root", "Root"),
        ("Root::Prefetch::ParallelInterleaveV4", "ParallelInterleave"),
        ("Model::BatchV2", "Batch"),
    ],
)
def test_a_kind_has_no_version(path: str, kind: str) -> None:
    assert kind_of(path) == kind


@pytest.mark.parametrize(
    ("shapes", "types", "batch_size", "size"),
    [
        ("[48,48,3]", "float", -1, 48 * 48 * 3 * 4),
        ("[]", "int64", -1, 8),
        ("[?,32,32,3] [?]", "float int64", 32, 32 * 32 * 32 * 3 * 4 + 32 * 8),
        ("[?,32]", "float", -1, None),
        ("[32,?]", "float", 32, None),
        ("[]", "string", -1, None),
        ("<unknown>", "string", -1, None),
        ("[3] [4]", "half", -1, None),
        ("", "", -1, None),
    ],
)
def test_shapes_and_types_give_the_size_of_an_element(
    shapes: str, types: str, batch_size: int, size: int | None
) -> None:
    assert element_bytes(shapes, types, batch_size=batch_size) == size


def all_pipelines(trace: Trace) -> Pipelines:
    return find_pipelines(trace, 0, trace.duration_ns + 1, EMPTY)


@pytest.mark.parametrize(
    ("name", "self_times", "preprocessing_us"),
    [
        # From XProf 2.24.2's input_pipeline_analyzer, over the whole recording: (calls, self time)
        # by iterator, and the total time other than file reads. Its self time excludes nested
        # iterators and includes waiting, as here.
        (
            "keras_slow_input",
            {
                "Root::MapAndBatch": (5, 332.178911),
                "Root::MapAndBatch::Range": (162, 0.640222),
            },
            332907.723,
        ),
        (
            "keras_prefetch_fast",
            {"Root::Prefetch::MapAndBatch": (5, 5.834947), "Root::Prefetch": (5, 0.9229)},
            7180.016,
        ),
        (
            "keras_mixed_bf16",
            {"Root::Prefetch::MapAndBatch": (5, 8.849608), "Root::Prefetch": (5, 6.295315)},
            15523.756,
        ),
    ],
)
def test_self_times_equal_those_of_xprof(
    corpus: Path, name: str, self_times: dict[str, tuple[int, float]], preprocessing_us: float
) -> None:
    pipelines = all_pipelines(read(corpus, f"local-tf-cpu/{name}/**/*.xplane.pb"))
    for path, (count, self_ms) in self_times.items():
        node = pipelines.path.index(path)
        assert pipelines.count[node] == count
        # Each event is rounded from picoseconds to nanoseconds.
        assert pipelines.self_ns[node] / 1e6 == pytest.approx(self_ms, abs=2e-4)
    assert not READERS.intersection(pipelines.kind)
    assert pipelines.self_ns.sum() / 1e3 == pytest.approx(preprocessing_us, abs=1)


def test_the_bottleneck_of_a_recorded_step_is_the_slow_map(corpus: Path) -> None:
    trace = read(corpus, "local-tf-cpu/keras_slow_input/**/*.xplane.pb")
    signals = Signals(run_of(trace))
    pipelines = tfdata(signals)
    node = pipelines.bottleneck
    assert pipelines.path[node] == "Root::MapAndBatch"
    assert pipelines.dataset[node] == "fused(MapDataset:1,BatchDatasetV2:2)"
    assert (pipelines.parallelism[node], pipelines.batch_size[node]) == (1, 32)
    assert pipelines.cores == 2
    # 32 sleeps of 2 ms in each of five steps.
    assert pipelines.function_count[node] == 160
    assert pipelines.function_ns[node] > 160 * 2_000_000
    stall = signals.attribution.intervals[Cause.INPUT]
    assert total_ns(join(*pipelines.stall)) / total_ns(stall) > 0.99


def test_chains_continue_the_nearest_recorded_one() -> None:
    paths = ["Root", "Root::Map", "Root::Map2", "Root::Map::Batch::Zip", "Other::Map", "Root::Map"]
    numbered = [*((0, path) for path in paths[:-1]), (1, paths[-1])]
    # `Root::Map::Batch` was not recorded; the second pipeline has no other chain.
    assert parents_of_paths(numbered) == [-1, 0, 0, 1, -1, -1]


def test_a_name_of_separators_takes_no_longer_than_it_is_long() -> None:
    assert parents_of_paths([(0, "::" * 500_000), (0, "A")]) == [-1, -1]
