from __future__ import annotations

import pytest
from msgspec.structs import replace

from tb_perfadvisor.machine.facts import Facts, Made, Program, Value
from tb_perfadvisor.rules.input.loading import NeedlessLoaderWorkers
from tb_perfadvisor.testing import TraceBuilder, check_rule, find
from tb_perfadvisor.testing.builder import us
from tb_perfadvisor.testing.symbols import host
from tb_perfadvisor.trace import EventKind, Trace

WORKERS = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
ALONE = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
STEPS = 3


def program(wait_us: float, *, fetch: str = WORKERS, workers: int = 2, **known: Value) -> Trace:
    """Steps on the CPU that wait for input, and then compute for 2 ms."""
    builder, at = TraceBuilder(), 0.0
    for number in range(STEPS):
        builder.step(number, us(at), us(at + wait_us + 2000))
        builder.add(host(fetch, EventKind.INPUT_WAIT), us(at), us(at + wait_us), thread="main")
        builder.operator("aten::mm", us(at + wait_us), us(at + wait_us + 2000), launches=False)
        at += wait_us + 2000
    facts: dict[str, Value] = {
        "num_workers": workers,
        "batch_size": 32,
        "samples": 1000,
        "dataset": "TensorDataset",
        "dataset_bytes": 0,
        **known,
    }
    made = Made("loader", "DataLoader", "train.py", 12, "", facts)
    return replace(builder.build(), facts=Facts(program=Program(made=(made,))))


def test_saves_what_waiting_takes_longer_than_loading() -> None:
    # 60 us, 7 for each of 32 samples, and 1,000 bytes of each at 2.5 GB/s: 60 + 224 + 12.8 us.
    size = 1_000_000
    checked = check_rule(
        NeedlessLoaderWorkers,
        slow=program(3000, dataset_bytes=size),
        fixed=program(296.8, dataset_bytes=size, fetch=ALONE, workers=0),
        saves="2703200ns",
        scales=False,  # loading stays
    )
    (finding,) = checked.findings
    assert finding.saving is not None
    assert finding.saving.low_ns == STEPS * us(3000 - 60 - 32 * 12.4)
    assert finding.saving.high_ns == STEPS * us(3000 - 60 - 32 * 3.4)
    assert finding.remedies[0].fixes == ("no-loader-workers",)


@pytest.mark.parametrize(
    "trace",
    [
        program(3000),  # nothing tells that the samples are in memory
        program(300, dataset_bytes=1_000_000),
        program(3000, dataset_bytes=1_000_000, dataset="Images", batch_size=128),
        program(3000, dataset_bytes=1_000_000, fetch=ALONE, workers=0),
    ],
    ids=["unknown size", "short waits", "samples may be prepared", "no workers"],
)
def test_nothing_where_workers_may_pay(trace: Trace) -> None:
    assert find(NeedlessLoaderWorkers, trace) == ()


def test_just_below_and_just_above_the_limit() -> None:
    # 2703 of 5000 us: 54 %.
    trace = program(3000, dataset_bytes=1_000_000)
    assert find(NeedlessLoaderWorkers, trace, settings={"minimum_share": 0.55}) == ()
    assert find(NeedlessLoaderWorkers, trace, settings={"minimum_share": 0.53})
