from __future__ import annotations

import numpy as np
from msgspec.structs import fields, replace

from tb_perfadvisor.rules.finding import Table
from tb_perfadvisor.rules.launch.waits import BackwardSynchronization, DeviceSynchronization
from tb_perfadvisor.testing import check_rule, draw, find
from tb_perfadvisor.testing.symbols import Symbol, host, operator
from tb_perfadvisor.trace import EventKind, Trace
from tb_perfadvisor.trace.tables import EventTable, make_table

# The frames and operators of a recorded vision transformer whose PatchDropout gathers (torch
# 2.13 on a CPU). On a GPU, the deterministic scatter_add_ also runs
# _scatter_via_index_put, aten/src/ATen/native/TensorAdvancedIndexing.cpp: strides are copied
# from the host and waited for, then index_put_ adds.
NODE = "autograd::engine::evaluate_function: GatherBackward0"
LEGEND: dict[str, Symbol] = {
    "V": host("nn.Module: ViT_0", EventKind.PYTHON),
    "P": host("nn.Module: PatchDropout_0", EventKind.PYTHON),
    "f": host("gen_torch.py(47): forward", EventKind.PYTHON),
    "o": operator("aten::gather"),
    "n": operator(NODE, launches=False),
    "G": operator("GatherBackward0", launches=False),
    "a": operator("aten::scatter_add_", launches=False),
    "t": operator("aten::to", launches=False),
    "y": operator("aten::copy_", launches=False),
    "L": host("cudaMemcpyAsync", EventKind.LAUNCH),
    "i": operator("aten::index_put_"),
    "A": host("nn.Module: patch_drop (PatchDropout)"),
}
SLOW = """
    cell 10us
    step           |..........|..........|
    main           |V.........|V.........|
    main           |P.........|P.........|
    main           |f.........|f.........|
    main           |o.........|o.........|
    pt_autograd_0  |.nnnnn....|.nnnnn....|
    pt_autograd_0  |.GGGGG....|.GGGGG....|
    pt_autograd_0  |.aaaaa....|.aaaaa....|
    pt_autograd_0  |.tttt.....|.tttt.....|
    pt_autograd_0  |.yyyy.....|.yyyy.....|
    pt_autograd_0  |.LSSSi....|.LSSSi....|
    gpu 7          |KKKKq.KKKK|KKKKq.KKKK|
"""
FIXED = """
    cell 10us
    step           |.........|.........|
    main           |o........|o........|
    pt_autograd_0  |.nn......|.nn......|
    pt_autograd_0  |.Li......|.Li......|
    gpu 7          |KKKKqKKKK|KKKKqKKKK|
"""


def joined(drawing: str) -> Trace:
    """The drawing, with backward nodes matched to the forward operator before them."""
    trace = draw(drawing, legend=LEGEND)
    columns = {item.name: getattr(trace.events, item.name) for item in fields(EventTable)}
    names = np.array(trace.strings)[trace.events.name]
    rows = np.arange(len(names))
    forward = np.maximum.accumulate(np.where(names == "aten::gather", rows, -1))
    is_node = np.isin(names, (NODE, "GatherBackward0"))
    columns["forward"] = np.where(is_node, forward, -1)
    return replace(trace, events=make_table(EventTable, columns))


def table_of(trace: Trace) -> tuple[list[str], tuple[object, ...]]:
    (finding,) = find(BackwardSynchronization, trace) or ()
    table = finding.evidence[0]
    assert isinstance(table, Table)
    (row,) = table.rows
    return [column.key for column in table.columns], row


def test_saves_what_the_fix_saves() -> None:
    checked = check_rule(
        BackwardSynchronization, slow=joined(SLOW), fixed=joined(FIXED), saves="10us"
    )
    # Without the 30 µs of the call during which the device works.
    assert checked.expected_ns == 10_000
    (finding,) = checked.findings
    assert finding.summary == (
        "Waiting for the device in the backward pass costs 10.0 µs of each step (10.0 %): 1 wait"
        " per step, mostly in GatherBackward0 of aten::gather (PatchDropout_0, gen_torch.py:47"
        " forward), without which the host would run ahead."
    )
    assert "y = x[rows, keep]" in finding.remedies[0].snippet


def test_the_call_is_traced_to_node_operator_module_and_line() -> None:
    keys, row = table_of(joined(SLOW))
    assert keys == [
        "cause", "node", "operator", "call", "module", "source",
        "count", "duration_ns", "idle_ns", "if_needed_ns", "if_free_ns", "expected_ns",
    ]  # fmt: skip
    assert row == (
        "torch.gather's deterministic backward",
        "aten::gather",
        "aten::scatter_add_ > aten::copy_",
        "cudaStreamSynchronize",
        "PatchDropout_0",
        "gen_torch.py:47 forward",
        2,
        60_000,
        *[20_000] * 4,  # nothing is copied to the host, so both prices are the same
    )


def test_labels_name_the_module_without_stacks() -> None:
    labeled = "\n".join(
        line.replace("V", "A") for line in SLOW.splitlines() if not {"P", "f"} & set(line[20:])
    )
    keys, row = table_of(joined(labeled))
    assert "source" not in keys
    assert row[keys.index("module")] == "patch_drop (PatchDropout)"


def test_names_the_node_if_its_forward_operator_is_not_recorded() -> None:
    keys, row = table_of(draw(SLOW, legend=LEGEND))
    assert row[keys.index("node")] == "GatherBackward0"
    assert not {"module", "source"} & set(keys)


def test_waits_of_the_forward_pass_are_left_alone() -> None:
    is_node = ("n", "G")
    lines = [line for line in SLOW.splitlines() if not any(f"|.{c}{c}" in line for c in is_node)]
    trace = draw("\n".join(lines), legend=LEGEND)
    assert find(BackwardSynchronization, trace) == ()
    assert len(find(DeviceSynchronization, trace) or ()) == 1


def test_just_below_and_just_above_the_limit() -> None:
    # One cell of ten.
    trace = joined(SLOW)
    assert find(BackwardSynchronization, trace, settings={"minimum_share": 0.101}) == ()
    assert len(find(BackwardSynchronization, trace, settings={"minimum_share": 0.099}) or ()) == 1
