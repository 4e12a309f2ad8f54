from __future__ import annotations

import pytest

from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.input.input_stages import Stage, input_stages, stage_of
from tb_perfadvisor.testing import TraceBuilder, draw, ms, run_of
from tb_perfadvisor.testing.symbols import Symbol, host
from tb_perfadvisor.trace import EventKind


# Names from a CPU recording of PyTorch 2.13, an H100 recording of owlv2, and PyTorch's sources.
@pytest.mark.parametrize(
    ("name", "stage"),
    [
        ("torch/utils/data/dataloader.py(1278): _try_get_data", Stage.WORKERS),
        ("torch/utils/data/dataloader.py(783): _next_data", None),
        ("torch/utils/data/_utils/fetch.py(49): fetch", Stage.PREPROCESSING),
        ("torch/utils/data/_utils/fetch.py(54): <listcomp>", None),
        (
            "/opt/conda/lib/python3.8/site-packages/torch/utils/data/_utils/fetch.py(42): fetch",
            Stage.PREPROCESSING,
        ),
        ("torch/utils/data/_utils/collate.py(246): collate_tensor_fn", Stage.COLLATE),
        ("transformers/pipelines/base.py(85): no_collate_fn", Stage.COLLATE),
        ("torch/utils/data/_utils/pin_memory.py(53): pin_memory", Stage.TRANSFER),
        ("<built-in method pin_memory of Tensor object at 0x7f7b359872a0>", Stage.TRANSFER),
        ("<built-in function open>", Stage.READING),
        ("<built-in function fromfile>", Stage.READING),
        ("<built-in method read of _io.BufferedReader object at 0x7fb9e26a5170>", Stage.READING),
        (
            "<built-in method __exit__ of _io.BufferedReader object at 0x7f7b35aa5170>",
            Stage.READING,
        ),
        ("<built-in method recvmsg of socket object at 0x7f896ffbc160>", Stage.READING),
        ("gcsfs/core.py(1070): _cat_file", Stage.READING),
        ("<built-in method decode of ImagingDecoder object at 0x7fd49d0a7ab0>", None),
        ("<built-in method decode of bytes object at 0x7fb9e25add90>", None),
        ("numpy/lib/_npyio_impl.py(311): load", None),
        ("<built-in function zoom_shift>", None),
        ("aten::stack", None),
    ],
)
def test_names_tell_the_stage(name: str, stage: Stage | None) -> None:
    assert stage_of(name) is stage


def test_time_belongs_to_the_innermost_frame_of_the_step_thread() -> None:
    def frame(name: str) -> Symbol:
        return host(name, EventKind.PYTHON)

    trace = draw(
        """
        cell 1ms
        step   |............|
        main   |DDDDDDDDDDoo|
        main   |ffffffff....|
        main   |rccccr......|
        main   |..r.........|
        other  |ffffffff....|
        """,
        legend={
            "f": frame("torch/utils/data/_utils/fetch.py(49): fetch"),
            "c": frame("torch/utils/data/_utils/collate.py(340): default_collate"),
            "r": frame("<built-in function open>"),
        },
    )
    stages = input_stages(Signals(run_of(trace)))
    ns = {stage: part.tolist() for stage, part in stages.intervals.items() if len(part)}
    milli = 1_000_000
    assert ns == {
        Stage.READING: [[0, milli], [2 * milli, 3 * milli], [5 * milli, 6 * milli]],
        Stage.COLLATE: [[milli, 2 * milli], [3 * milli, 5 * milli]],
        Stage.PREPROCESSING: [[6 * milli, 8 * milli]],
    }
    rows, self_ns = stages.rows_of(Stage.COLLATE)
    # Of the 4 ms of collation, 1 ms is a call that reads.
    assert [trace.name(row)[-15:] for row in rows] == ["default_collate"]
    assert self_ns.tolist() == [3 * milli]


def test_an_operator_that_overlaps_a_fetch_without_being_inside_it() -> None:
    """Of a damaged file: the events of a thread nest in a valid one."""
    builder = (
        TraceBuilder()
        .add(host("fetch", EventKind.INPUT_WAIT), ms(0), ms(6), thread="main")
        .operator("aten::stack", ms(4), ms(9), launches=False)
        .operator("aten::stack", ms(9), ms(10), launches=False)
    )
    stages = input_stages(Signals(run_of(builder.build())))
    # The operator begins in the fetch. Nothing is inside of it.
    assert stages.self_ns.tolist() == [ms(5)]
