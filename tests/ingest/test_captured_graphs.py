"""Kernels of replayed GPU graphs know the operators that put them into the graph."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from tb_perfadvisor.ingest.discovery import discover
from tb_perfadvisor.ingest.load import load_capture
from tb_perfadvisor.signals.core.causes import COMPUTE
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.signals.work.products import replayed_products
from tb_perfadvisor.signals.work.roofline import roofline
from tb_perfadvisor.testing.builder import run_of
from tb_perfadvisor.trace import EventKind, Trace
from tests.support import nsight_exports
from tests.support.kineto_files import event, kernel, to_bytes

SERVED = "vllm/rank0.1795226000001.pt.trace.json"
CAPTURED = "vllm/capture_traces/graph_capture_rank_0.1795226000000.pt.trace.json"
LAYERS = 4
NAMES = ("Cijk_gemm", "elementwise_add", "paged_attention")
"""The kernels of a layer."""


def operators_of_layer(batch: int, layer: int) -> list[tuple[str, str, list[list[int]]]]:
    """Each operator of a layer with its kernel and shapes."""
    hidden = 64 * (1 + layer)
    return [
        ("aten::mm", NAMES[0], [[batch, 128], [128, hidden]]),
        ("aten::add", NAMES[1], [[batch, hidden], [batch, hidden]]),
        ("vllm::unified_attention", NAMES[2], [[batch, 8, hidden // 8]]),
    ]


def capture(*batches: int, states_kernels: bool = True, at: int = 0) -> list[dict[str, Any]]:
    """A graph of all layers is captured for each batch size."""
    events = []
    for batch in batches:
        begin = at
        events.append(event("hipStreamBeginCapture", at + 1, 1, cat="cuda_runtime"))
        at += 3
        for layer in range(LAYERS):
            module = event(f"nn.Module: Layer_{layer}", at, 36, cat="python_function")
            events.append({**module, "args": {"Python id": at}})
            for name, started, shapes in operators_of_layer(batch, layer):
                types = ["c10::BFloat16"] * len(shapes)
                shown = {"Input Dims": shapes, "Input type": types}
                events.append(event(name, at, 10, args=shown))
                stated = {"kernel": started} if states_kernels else {}
                launch = event("hipLaunchKernel", at + 2, 3, cat="cuda_runtime")
                events.append({**launch, "args": {"correlation": 10_000 + at, **stated}})
                at += 12
            at += 1
        events.append(event("hipStreamEndCapture", at, 1, cat="cuda_runtime"))
        annotation = f"capture_{batch}_FULL"
        events.append(event(annotation, begin, at + 2 - begin, cat="user_annotation"))
        at += 5
    return events


def replays(
    *tokens: int, shuffled: random.Random | None = None, first: int = 0
) -> list[dict[str, Any]]:
    """A step of the server for each number of tokens, each one replay of all layers."""
    events = []
    for number, count in enumerate(tokens):
        at, correlation = first + 1_000 * number, 1 + number
        name = f"execute_context_0(0)_generation_{count}({count})"
        events.append(event(name, at, 900, cat="user_annotation"))
        launch = event("hipGraphLaunch", at + 10, 20, cat="cuda_runtime")
        events.append({**launch, "args": {"correlation": correlation}})
        work = [names for _ in range(LAYERS) for names in NAMES]
        if shuffled is not None:  # as parallel branches may finish in any order
            shuffled.shuffle(work)
        for place, started in enumerate(work):
            ts = at + 40 + 30 * place
            events.append(kernel(started, ts, 25, correlation=correlation))
    return events


def written(root: Path, files: dict[str, list[dict[str, Any]]]) -> Path:
    for name, events in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(to_bytes(events, record_shapes=1, with_stack=1))
    return root


def loaded(root: Path, files: dict[str, list[dict[str, Any]]]) -> Trace:
    listing = discover(written(root, files))
    (found,) = listing.captures
    return load_capture(listing, found).traces[0]


def joined(trace: Trace) -> list[tuple[str, str, str]]:
    """Kernel, operator and shapes of each joined kernel, in order of time."""
    shapes = trace.by_event(trace.operators.row, trace.operators.shapes, -1)
    return [
        (trace.name(row), trace.name(operator), trace.text(int(shapes[operator])))
        for row, operator in zip(
            trace.captured.row.tolist(), trace.captured.operator.tolist(), strict=True
        )
    ]


def expected(batch: int) -> list[tuple[str, str, str]]:
    return [
        (started, name, str(shapes).replace(" ", ""))
        for layer in range(LAYERS)
        for name, started, shapes in operators_of_layer(batch, layer)
    ]


def test_kernels_take_the_operators_of_their_batch(tmp_path: Path) -> None:
    files = {SERVED: replays(30, 8, 30), CAPTURED: capture(32, 16, 8)}
    trace = loaded(tmp_path, files)
    assert joined(trace) == [*expected(32), *expected(8), *expected(32)]
    (note,) = [note for note in trace.notes if note.id == "joined-graphs"]
    assert "36 kernels in 3 of 3 replays" in note.message


def test_nothing_else_changes(tmp_path: Path) -> None:
    served = replays(32, 32)
    alone = loaded(tmp_path / "alone", {SERVED: served})
    trace = loaded(tmp_path / "both", {SERVED: served, CAPTURED: capture(32)})
    count = len(alone.events)
    for name in ("start_ns", "duration_ns", "kind", "track", "parent", "launched_by"):
        ours, theirs = getattr(trace.events, name), getattr(alone.events, name)
        assert (ours[:count] == theirs).all()
    assert (trace.events.duration_ns[count:] == 0).all()
    assert trace.duration_ns == alone.duration_ns
    before, after = Signals(run_of(alone)), Signals(run_of(trace))
    assert before.attribution.window_ns == after.attribution.window_ns
    compute = (before.attribution.total_ns(*COMPUTE), after.attribution.total_ns(*COMPUTE))
    assert compute[0] == compute[1] > 0
    assert len(before.trace.rows(EventKind.OPERATOR)) == len(after.trace.rows(EventKind.OPERATOR))


def test_operators_bring_modules_work_and_products(tmp_path: Path) -> None:
    trace = loaded(tmp_path, {SERVED: replays(32, 32), CAPTURED: capture(32)})
    signals = Signals(run_of(trace))
    rows = trace.captured.row.tolist()
    modules = [signals.origins.module_of(row) for row in rows]
    assert modules == 2 * [f"Layer_{layer}" for layer in range(LAYERS) for _ in NAMES]
    work = roofline(signals)
    flop = dict(zip(work.rows.tolist(), work.flop.tolist(), strict=True))
    assert [flop[row] for row in rows if trace.name(row) == NAMES[0]] == 2 * [
        2 * 32 * 128 * 64 * (1 + layer) for layer in range(LAYERS)
    ]
    products = replayed_products(signals)
    assert len(products.work) == 2 * LAYERS


def test_order_of_equal_kernels_decides_among_branches(tmp_path: Path) -> None:
    files = {SERVED: replays(32, shuffled=random.Random(7)), CAPTURED: capture(32)}
    trace = loaded(tmp_path, files)
    assert sorted(joined(trace)) == sorted(expected(32))
    pairs = {(started, name) for name, started, _ in operators_of_layer(32, 0)}
    assert {(started, name) for started, name, _ in joined(trace)} == pairs


def test_equal_layers_run_in_the_order_of_their_capture(tmp_path: Path) -> None:
    """Pieces of a graph have the same kernels; the first replay is that of the first layer."""
    pieces, served = [], []
    for layer in range(LAYERS):
        at = 100 * layer
        shown = {"Input Dims": [[4, 64], [64, 64 * (1 + layer)]], "Input type": ["float"] * 2}
        pieces += [
            event("hipStreamBeginCapture", at, 1, cat="cuda_runtime"),
            event("aten::mm", at + 2, 10, args=shown),
            event("hipLaunchKernel", at + 4, 2, cat="cuda_runtime", args={"kernel": "gemm"}),
            event("hipStreamEndCapture", at + 20, 1, cat="cuda_runtime"),
        ]
    for place in range(2 * LAYERS):
        link = {"correlation": 1 + place}
        served.append(event("hipGraphLaunch", 50 * place, 9, cat="cuda_runtime", args=link))
        served.append(kernel("gemm", 50 * place + 20, 20, correlation=1 + place))
    trace = loaded(tmp_path, {SERVED: served, CAPTURED: pieces})
    # Without a batch that tells which graphs belong together, the shapes are not the replay's.
    operators = trace.captured.operator.tolist()
    assert len(operators) == 2 * LAYERS
    assert len(set(operators)) == LAYERS
    assert operators[:LAYERS] == operators[LAYERS:]


def test_shapes_of_another_batch_are_not_taken(tmp_path: Path) -> None:
    served = [e for e in replays(32) if e["cat"] != "user_annotation"]
    trace = loaded(tmp_path, {SERVED: served, CAPTURED: capture(32, 8)})
    assert {shapes for _, _, shapes in joined(trace)} == {""}
    assert [name for _, name, _ in joined(trace)] == [name for _, name, _ in expected(32)]


@pytest.mark.parametrize("states_kernels", [True, False])
def test_another_model_is_not_joined(tmp_path: Path, states_kernels: bool) -> None:
    served = replays(32)
    for each in served:
        if each["cat"] == "kernel":
            each["name"] = "elementwise_other"
    captured = capture(32, states_kernels=states_kernels)
    assert not joined(loaded(tmp_path, {SERVED: served, CAPTURED: captured}))


def test_without_names_the_order_decides(tmp_path: Path) -> None:
    files = {SERVED: replays(32), CAPTURED: capture(32, states_kernels=False)}
    assert joined(loaded(tmp_path, files)) == expected(32)


def test_a_recording_may_hold_both(tmp_path: Path) -> None:
    trace = loaded(tmp_path, {SERVED: [*capture(32), *replays(32, first=5_000)]})
    assert joined(trace) == expected(32)
    assert not trace.rows(EventKind.CAPTURED_OPERATOR).size


def test_without_other_profiles_a_capture_is_one_itself(tmp_path: Path) -> None:
    listing = discover(written(tmp_path, {CAPTURED: capture(32)}))
    assert [each.run for each in listing.captures] == ["vllm/capture_traces"]


def test_a_damaged_capture_is_told(tmp_path: Path) -> None:
    written(tmp_path, {SERVED: replays(32), CAPTURED: capture(32)})
    (tmp_path / CAPTURED).write_bytes((tmp_path / CAPTURED).read_bytes()[:-40] + b"\x00")
    listing = discover(tmp_path)
    (found,) = listing.captures
    trace = load_capture(listing, found).traces[0]
    assert len(trace.rows(EventKind.KERNEL)) == LAYERS * len(NAMES)


def test_exports_of_nsight_systems_are_joined_likewise(tmp_path: Path) -> None:
    """`nsys profile --cuda-graph-trace=node` records the kernels of a replay one by one."""
    names = {1: "ampere_sgemm", 2: "void at::native::vectorized_elementwise_kernel<4>(int)"}
    calls = {3: "cudaStreamBeginCapture_v10000", 4: "cudaLaunchKernel_v7000"}
    calls |= {5: "cudaStreamEndCapture_v10000", 6: "cudaGraphLaunch_v10000"}
    nsight_exports.write(
        tmp_path / "report.sqlite",
        names | calls,
        NVTX_EVENTS=[
            nsight_exports.a_range(20, 40, "aten::mm, seq = 1, sizes = [[8, 4], [4, 2]]"),
            nsight_exports.a_range(50, 70, "aten::add, seq = 2, sizes = [[8, 2], [8, 2]]"),
        ],
        CUPTI_ACTIVITY_KIND_RUNTIME=[
            nsight_exports.call(10, 11, 3, 1),
            nsight_exports.call(25, 30, 4, 2),
            nsight_exports.call(55, 60, 4, 3),
            nsight_exports.call(80, 81, 5, 4),
            nsight_exports.call(100, 110, 6, 5),
            nsight_exports.call(300, 310, 6, 6),
        ],
        CUPTI_ACTIVITY_KIND_KERNEL=[
            nsight_exports.kernel(120, 150, 1, correlation=5),
            nsight_exports.kernel(150, 170, 2, correlation=5),
            nsight_exports.kernel(320, 350, 1, correlation=6),
            nsight_exports.kernel(350, 370, 2, correlation=6),
        ],
    )
    listing = discover(tmp_path)
    (found,) = listing.captures
    trace = load_capture(listing, found).traces[0]
    layer = [
        (names[1], "aten::mm", "[[8, 4], [4, 2]]"),
        (names[2], "aten::add", "[[8, 2], [8, 2]]"),
    ]
    assert joined(trace) == [*layer, *layer]
