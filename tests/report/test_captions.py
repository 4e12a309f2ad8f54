from __future__ import annotations

import pytest

from tb_perfadvisor.contract.model import DeviceInfo, StepsInfo, Worker, WorkloadInfo
from tb_perfadvisor.report.key_numbers import make_caption


def worker(rank: int | None = None, name: str = "NVIDIA A100", used: int = 1) -> Worker:
    device = DeviceInfo(kind="gpu", name=name, visible=8, used=used) if used else None
    return Worker(rank=rank, host="host", file="f", events=1, duration_ns=1, device=device)


def program(
    mode: str = "unknown", framework: str = "unknown", parallelism: tuple[str, ...] = ()
) -> WorkloadInfo:
    return WorkloadInfo(
        mode=mode,
        framework=framework,
        parallelism=list(parallelism),
        input=[],
        compiled=[],
        features=[],
        evidence=[],
    )


def steps(used: int, source: str = "ProfilerStep", *, is_inferred: bool = False) -> StepsInfo:
    times = dict.fromkeys(("mean_ns", "median_ns", "min_ns", "max_ns", "p90_ns"))
    return StepsInfo(
        source=source, is_inferred=is_inferred, used=used, excluded=[], window_ns=1, **times
    )


@pytest.mark.parametrize(
    ("framework", "workers", "world_size", "steps", "caption"),
    [
        ("pytorch", [worker()], None, steps(1), "PyTorch · NVIDIA A100 · 1 step (ProfilerStep)"),
        (
            "pytorch",
            [worker(0), worker(1)],
            2,
            steps(3),
            "PyTorch · NVIDIA A100 · rank 0 of 2 · 3 steps (ProfilerStep)",
        ),
        (
            "pytorch",
            [worker(5)],
            64,
            steps(0),
            "PyTorch · NVIDIA A100 · rank 5 of 64 · no repeating steps",
        ),
        (
            "jax",
            [worker(name="TPU v5e", used=4)] * 2,
            None,
            steps(9, "module repeats", is_inferred=True),
            "JAX · 4 × TPU v5e · 2 hosts · 9 steps (inferred from module repeats)",
        ),
        ("unknown", [worker(used=0)], 1, steps(0), "unknown framework · CPU · no repeating steps"),
        ("onnx", [worker(name="")], 1, steps(0), "onnx · unknown device · no repeating steps"),
    ],
)
def test_the_caption_names_framework_device_rank_and_steps(
    framework: str, workers: list[Worker], world_size: int | None, steps: StepsInfo, caption: str
) -> None:
    assert make_caption(framework, program(), workers, 0, world_size, steps) == caption


@pytest.mark.parametrize(
    ("workload", "caption"),
    [
        (program("training"), "PyTorch, training · NVIDIA A100 · 1 step (ProfilerStep)"),
        (
            program("training", "Lightning", ("DDP",)),
            "Lightning (PyTorch), training · DDP · NVIDIA A100 · 1 step (ProfilerStep)",
        ),
        (
            program("inference server", "vLLM", ("tensor parallel", "expert parallel")),
            "vLLM (PyTorch), inference server · tensor parallel + expert parallel · NVIDIA A100"
            " · 1 step (ProfilerStep)",
        ),
    ],
)
def test_the_caption_names_the_program(workload: WorkloadInfo, caption: str) -> None:
    assert make_caption("pytorch", workload, [worker()], 0, None, steps(1)) == caption
