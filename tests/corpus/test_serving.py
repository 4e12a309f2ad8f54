"""Inference servers' steps on real profiles.

The numbers were worked out from the raw events: batches from the annotations' names, device events
by the correlation ids of their launches, the device's busy time as the union of their ranges.
"""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import pytest

from tb_perfadvisor import load
from tb_perfadvisor.signals import reference_worker
from tb_perfadvisor.signals.core.steps.server_annotations import StepKind
from tb_perfadvisor.signals.serving.decode import decode_floor
from tb_perfadvisor.signals.serving.server_steps import Phase, host_phases, server_steps
from tb_perfadvisor.trace import EventKind

DEEPSEEK = (
    "tracelens/partial_fixtures/agent_evals/Analysis/partial_tests/semantic_purity_deepseek_r1"
)


@pytest.mark.parametrize(
    ("folder", "kind", "requests", "tokens", "cached", "graphs", "events", "device_us"),
    [
        (
            "tracelens/inference_sglang_decode/b6a467c1",
            *(StepKind.DECODE, 32, 32, 32785, (1, 544), 558, 9772.929),
        ),
        (
            "tracelens/inference_vllm_prefilldecode_piecewise/2bd22c87",
            *(StepKind.MIXED, 46, 8192, 34489, (25, 361), 423, 156085.799),
        ),
        (f"{DEEPSEEK}/B300", StepKind.DECODE, 16, 16, 8209, (1, 356), 397, 3642.973),
        (f"{DEEPSEEK}/MI300", StepKind.DECODE, 16, 16, 8209, (1, 356), 389, 8008.630),
    ],
)
def test_the_step_of_a_server(
    corpus: Path,
    folder: str,
    kind: StepKind,
    requests: int,
    tokens: int,
    cached: int,
    graphs: tuple[int, int],
    events: int,
    device_us: float,
) -> None:
    (run,) = load(corpus / folder)
    steps = server_steps(reference_worker(run))
    assert steps is not None
    assert steps.kind.tolist() == [kind]
    assert (steps.requests.tolist(), steps.tokens.tolist()) == ([requests], [tokens])
    assert steps.cached_tokens.tolist() == [cached]
    assert (int(steps.graphs[0]), int(steps.graph_events[0])) == graphs
    assert steps.events.tolist() == [events]
    assert steps.device_ns[0] / 1e3 == pytest.approx(device_us, abs=0.1)


def test_the_idle_of_a_decode_step_is_the_preparation_of_its_inputs(corpus: Path) -> None:
    # The corpus' index: the idle is metadata preparation before the replay.
    (run,) = load(corpus / DEEPSEEK / "B300")
    signals = reference_worker(run)
    longest, second = host_phases(signals)[:2]
    assert (longest.phase, second.phase) == (Phase.INPUTS, Phase.MODEL)
    # The launch of the graph alone.
    assert second.code[0][0] == "cudaGraphLaunch"


def test_replayed_kernels_know_the_operators_of_the_capture(corpus: Path, tmp_path: Path) -> None:
    """As vLLM lays both recordings out. Each of 24 layers multiplies 32 tokens, padded to the
    graph's 32, by weights of 2880 x 5120, 4096 x 2880 and 2880 x 32 numbers of 16 bits. Outside of
    the graph, they are multiplied by those of a vocabulary of 201,088."""
    folder = tmp_path / "run"
    (folder / "capture_traces").mkdir(parents=True)
    names = ("inference_vllm_decode_full", "inference_vllm_decode_full_capture")
    for name, into in zip(names, (folder, folder / "capture_traces"), strict=True):
        (file,) = (corpus / "tracelens" / name).rglob("*.json.gz")
        shutil.copy(file, into)
    (alone,) = load(corpus / "tracelens" / names[0])
    (run,) = load(tmp_path)
    trace, before = run.traces[0], alone.traces[0]
    assert len(trace.captured.row) == 421
    kernels = before.rows(EventKind.KERNEL)
    assert trace.rows(EventKind.KERNEL).tolist() == kernels.tolist()
    assert (trace.events.duration_ns[kernels] == before.events.duration_ns[kernels]).all()
    shapes = trace.by_event(trace.operators.row, trace.operators.shapes, -1)
    products = [row for row in trace.captured.operator.tolist() if trace.name(row) == "aten::addmm"]
    assert len(products) == 3 * 24
    assert trace.text(int(shapes[products[0]])) == "[[5120],[32,2880],[2880,5120],[],[]]"
    floor = decode_floor(reference_worker(run))
    assert floor is not None
    assert floor.weight_bytes == 2 * (24 * 2880 * (5120 + 4096 + 32) + 2880 * 201_088)


def test_a_capture_in_the_same_recording(corpus: Path) -> None:
    """CUDA states no kernels' names at their launch; inductor's graph of segment-anything. Names of
    kernels and operators say the same, one by one."""
    (folder,) = (corpus / "pytorch-labs").glob("01_143a949f_asdf_True")
    (run,) = load(folder)
    trace = run.traces[0]
    assert len(trace.captured.row) == 558
    kernels = trace.texts(trace.events.name[trace.captured.row])
    operators = trace.texts(trace.events.name[trace.captured.operator])
    pairs = Counter(zip(operators, kernels, strict=True))
    assert pairs["aten::mm", "ampere_bf16_s16816gemm_bf16_128x256_ldg8_f2f_stages_64x3_tn"] == 120
    for operator, kernel in pairs:
        assert operator.startswith("triton_") == kernel.startswith("triton__"), (operator, kernel)
        assert ("attention" in operator) == ("fmha" in kernel), (operator, kernel)
        assert (operator in ("aten::mm", "aten::addmm")) == (
            "gemm" in kernel and operator != "aten::cudnn_convolution"
        ), (operator, kernel)
