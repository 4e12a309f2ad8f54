from __future__ import annotations

import io

import pytest

from tb_perfadvisor.ingest.xplane.reader import read_xplane
from tb_perfadvisor.testing import draw
from tb_perfadvisor.testing.symbols import function_run, iterator, operator
from tb_perfadvisor.testing.writers.xplane import write_xplane
from tb_perfadvisor.trace import Source, Trace

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
