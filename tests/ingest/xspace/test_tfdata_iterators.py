from __future__ import annotations

import io

import pytest

from tb_perfadvisor.ingest.xspace.reader import read_xplane
from tb_perfadvisor.testing import draw
from tb_perfadvisor.testing.symbols import function_run, iterator, operator
from tb_perfadvisor.trace import Source, Trace
from tests.support.writers.xplane import write_xplane
from tests.support.xspaces import Drawing, kinds

FACTS = {
    "iterator": 5,
    # TensorFlow uses all 64 bits.
    "parent": -9,
    "dataset": "PrefetchDataset:4",
    "shapes": "[?,32,32,3] [?]",
    "types": "float int64",
    "parallelism": 3,
    "is_autotuned": 1,
    "batch_size": 32,
    "buffer_size": 7,
    "buffered": 2,
    "buffered_bytes": 8_000_000,
    "cores": 4,
    "threads": 6,
    "memory_bytes": 9_000_000_000,
}
TEXT = """
    cell 1ms
    step   |......|
    main   |RfMo..|
    pool   |.EEx..|
"""


def reread(trace: Trace) -> Trace:
    return read_xplane(io.BytesIO(write_xplane(trace)), Source(path="x", format="xplane"))


def test_iterator_statistics_are_read() -> None:
    trace = reread(
        draw(
            TEXT,
            legend={
                "R": iterator("Root::Prefetch", **FACTS),
                "M": iterator("Root::Prefetch::Map", iterator=6),
                "f": function_run(-3),
                "E": function_run(-3, "ExecutorState::Process"),
                # The executor of the model, with its own number.
                "x": function_run(4, "ExecutorState::Process"),
                "o": operator("model/MatMul:MatMul"),
            },
            framework="tensorflow",
        )
    )
    table = trace.iterators
    assert [trace.name(row) for row in table.row.tolist()] == [
        "Iterator::Root::Prefetch",
        # Both start at the same time: the longer one is first.
        "ExecutorState::Process",
        "InstantiatedCapturedFunction::RunAsync",
        "Iterator::Root::Prefetch::Map",
    ]
    assert table.run.tolist() == [0, -3, -3, 0]
    first = {
        name: trace.text(int(column[0])) if isinstance(FACTS[name], str) else int(column[0])
        for name, column in ((name, getattr(table, name)) for name in FACTS)
    }
    assert first == FACTS
    # Values that are not recorded are unknown.
    unknown = {name: int(getattr(table, name)[3]) for name in FACTS if name != "iterator"}
    assert unknown.pop("parent") == 0
    assert set(unknown.values()) == {-1}


@pytest.mark.parametrize("framework", ["jax", "tensorflow"])
def test_a_profile_without_tf_data(framework: str) -> None:
    trace = draw("cell 1ms\nstep |..|\nmain |oo|", framework=framework)  # type: ignore[arg-type]
    assert len(reread(trace).iterators.row) == 0


def test_what_a_user_function_runs_is_input_on_any_thread() -> None:
    """As in `sagemaker-debugger/tfprofiler_timeline`: both run on threads named `tf_Compute`."""
    drawing = Drawing()
    host = drawing.plane("/host:CPU")
    fetch = drawing.line(host, "tf_data_iterator_get_next")
    drawing.event(host, fetch, "Iterator::Model", 0, 100, id=1)
    drawing.event(host, fetch, "Iterator::Model::ParallelMap", 0, 100, id=2, parent_id=1)
    drawing.event(host, fetch, "InstantiatedCapturedFunction::RunAsync", 5, 1, id=-7)
    pool = drawing.line(host, "tf_Compute")
    drawing.event(host, pool, "ExecutorState::Process", 10, 60, id=-7)
    drawing.event(host, pool, "GatherV2:GatherV2", 12, 50)
    # The element is ready, and the executor of the step goes on inside the callback.
    drawing.event(host, pool, "ExecutorState::Process", 63, 5, id=3)
    drawing.event(host, pool, "model/Cast:Cast", 64, 2)
    drawing.event(host, pool, "ExecutorState::Process", 80, 20, id=3)
    drawing.event(host, pool, "model/MatMul:MatMul", 81, 10)
    found = kinds(drawing.read())
    assert found["GatherV2:GatherV2"] == "INPUT_WORK"
    assert (found["model/Cast:Cast"], found["model/MatMul:MatMul"]) == ("OPERATOR", "OPERATOR")


def test_a_function_inside_the_executor_of_the_step() -> None:
    """A sequential map runs on the thread that fetches, which may be the executor's own."""
    drawing = Drawing()
    host = drawing.plane("/host:CPU")
    pool = drawing.line(host, "tf_Compute")
    drawing.event(host, pool, "ExecutorState::Process", 0, 100, id=3)
    drawing.event(host, pool, "Iterator::Model::Map", 10, 50, id=1, parent_id=2)
    drawing.event(host, pool, "InstantiatedCapturedFunction::Run", 11, 40, id=-7)
    drawing.event(host, pool, "ExecutorState::Process", 12, 30, id=-7)
    drawing.event(host, pool, "decode/Mul:Mul", 13, 20)
    drawing.event(host, pool, "model/MatMul:MatMul", 70, 20)
    found = kinds(drawing.read())
    assert (found["decode/Mul:Mul"], found["model/MatMul:MatMul"]) == ("INPUT_WORK", "OPERATOR")


def test_a_budget_of_no_cores_is_unknown() -> None:
    trace = reread(
        draw(
            TEXT,
            legend={
                "R": iterator("Root::Prefetch", **(FACTS | {"cores": 0})),
                "M": iterator("Root::Prefetch::Map", iterator=6, cores=1),
                "f": function_run(-3),
                "E": function_run(-3, "ExecutorState::Process"),
                "x": function_run(4, "ExecutorState::Process"),
                "o": operator("model/MatMul:MatMul"),
            },
            framework="tensorflow",
        )
    )
    assert trace.iterators.cores.tolist() == [-1, -1, -1, 1]
