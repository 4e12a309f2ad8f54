from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace

from tb_perfadvisor.comparison.run_facts import MAX_NAMES, RunFacts
from tb_perfadvisor.note import Note
from tb_perfadvisor.testing import TraceBuilder, draw, ms, xla_op
from tb_perfadvisor.trace import Totals
from tests.support.comparison_facts import facts_of

# Each step: 4 ms of fetching of which the device waits 5 (with the launch), 5 ms of compute.
SLOW = """
    cell 1ms
    step   |..........|..........|..........|
    main   |DDDDoo....|DDDDoo....|DDDDoo....|
    gpu 7  |....KKKKKK|....KKKKKK|....KKKKKK|
"""


def test_facts_of_a_drawn_run() -> None:
    facts = facts_of(draw(SLOW, device="NVIDIA H100 80GB HBM3"), name="runs/slow")
    assert facts.name == "runs/slow"
    assert facts.step_ns == [ms(10)] * 3
    assert facts.window_ns == ms(30)
    assert facts.causes == {"compute-32": ms(18), "input": ms(12)}
    assert facts.input_wait_share == 0.4
    assert facts.setup.device == "NVIDIA H100 80GB HBM3"
    assert facts.kernels is not None
    assert [(row.name, row.count, row.total_ns, row.family) for row in facts.kernels.rows] == [
        ("ampere_sgemm_128x64_nn", 3, ms(18), "matmul")
    ]
    assert facts.operators is not None
    assert facts.operators.is_device_time
    assert [(row.name, row.count, row.total_ns) for row in facts.operators.rows] == [
        ("aten::mm", 3, ms(18))
    ]
    stall = facts.findings[0]
    assert stall.rule_id == "input-stall"
    assert stall.saving is not None
    # 4 of each 10 ms wait for input; between half of it and all of it goes.
    assert (stall.saving.expected_ns, stall.saving.high_ns) == (ms(9), ms(12))
    assert stall.saving.claims == {"input": ms(12)}
    assert facts.outcomes["step-gap"].status in ("passed", "not_applicable")


def test_facts_survive_a_json_round_trip() -> None:
    facts = facts_of(draw(SLOW))
    assert msgspec.json.decode(msgspec.json.encode(facts), type=RunFacts) == facts


def test_operators_have_their_own_time_without_a_device() -> None:
    trace = draw(
        """
        cell 1ms
        step   |..........|..........|
        main   |DD.oooo...|DD.oooo...|
        """
    )
    facts = facts_of(trace)
    assert facts.kernels is None
    assert facts.operators is not None
    assert not facts.operators.is_device_time
    assert [(row.name, row.count, row.total_ns) for row in facts.operators.rows] == [
        ("aten::mm", 2, ms(8))
    ]
    assert facts.setup.device is None


def test_precision_on_the_cpu() -> None:
    builder = TraceBuilder().step(0, 0, ms(10))
    builder.operator("aten::mm", 0, ms(6), launches=False, dtypes=["c10::BFloat16"] * 2)
    builder.operator("aten::mm", ms(6), ms(8), launches=False, dtypes=["float"] * 2)
    # A copy is not a computation, so its dtype does not count.
    builder.operator("aten::empty", ms(8), ms(10), launches=False, dtypes=["double"])
    precision = facts_of(builder.build()).setup.precision
    assert precision == {"8": 0.0, "16": 0.75, "32": 0.25, "64": 0.0, "unknown": 0.0}
    bare = TraceBuilder().step(0, 0, ms(10)).operator("aten::mm", 0, ms(6), launches=False)
    assert facts_of(bare.build()).setup.precision is None


def test_numbers_of_xla_operations_are_removed() -> None:
    builder = TraceBuilder("jax")
    for at, name in enumerate(("fusion.1", "fusion.2", "copy.7")):
        builder.add(xla_op(name, f"%{name} = f32[8]{{0}} fusion()"), ms(at), ms(at + 1), tpu=0)
    kernels = facts_of(builder.build()).kernels
    assert kernels is not None
    assert [(row.name, row.count, row.total_ns) for row in kernels.rows] == [
        ("fusion", 2, ms(2)),
        ("copy", 1, ms(1)),
    ]


def test_names_are_capped_at_a_thousand() -> None:
    builder = TraceBuilder().step(0, 0, ms(MAX_NAMES + 10))
    for at in range(MAX_NAMES + 10):
        builder.kernel(f"kernel{at}x", ms(at), ms(at) + 1_000 + at)
    kernels = facts_of(builder.build()).kernels
    assert kernels is not None
    assert len(kernels.rows) == MAX_NAMES
    assert kernels.rows[-1].name == "kernel10x"


def test_a_recorders_totals_have_no_kernels() -> None:
    facts = facts_of(replace(draw(SLOW), totals=Totals(shows=frozenset())))
    assert facts.kernels is None
    assert facts.operators is None
    assert sum(facts.causes.values()) == facts.window_ns


def test_a_truncated_file() -> None:
    note = Note("truncated-file", "warning", "it breaks off.")
    builder = TraceBuilder().step(0, 0, ms(5)).operator("aten::mm", 0, ms(5), launches=False)
    assert not facts_of(builder.build()).is_truncated
    assert facts_of(builder.note(note).build()).is_truncated


@pytest.mark.parametrize("name", ["", "."])
def test_the_root_of_the_logdir_has_no_name(name: str) -> None:
    assert facts_of(draw(SLOW), name=name).name == "."
