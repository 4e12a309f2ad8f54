"""Which key numbers are compared with what has been published."""

from __future__ import annotations

import pytest

from tb_perfadvisor.signals import Signals, reference_worker
from tb_perfadvisor.signals.efficiency.utilization import references
from tb_perfadvisor.testing import TraceBuilder, run_of
from tb_perfadvisor.trace import KernelFamily

BACKWARD = "autograd::engine::evaluate_function: AddmmBackward0"


def program(
    device: str,
    *,
    family: KernelFamily = KernelFamily.ATTENTION,
    operator: str = BACKWARD,
    count: int = 30,
) -> Signals:
    builder = TraceBuilder()
    builder.device(device, memory_bytes=80 << 30)
    for index in range(count):
        begin = index * 100
        builder.operator(operator, begin, begin + 50, key=f"{index}")
        builder.kernel("k", begin + 60, begin + 90, family=family, launched_by=f"{index}")
    return reference_worker(run_of(builder.build()))


@pytest.mark.parametrize(
    ("device", "mfu", "verdict", "text"),
    [
        # Llama 3 405B: 38 to 43 %. Three quarters of 38 % are 28.5 %.
        ("NVIDIA H100 80GB HBM3", 0.16, "poor", "38 to 43 % on H100"),
        ("NVIDIA H100 80GB HBM3", 0.284, "poor", "38 to 43 % on H100"),
        ("NVIDIA H100 80GB HBM3", 0.286, "fair", "38 to 43 % on H100"),
        ("NVIDIA H100 80GB HBM3", 0.38, "good", "38 to 43 % on H100"),
        ("NVIDIA A100-SXM4-80GB", 0.38, "fair", "42 to 56 % on A100"),
    ],
)
def test_training_with_attention(device: str, mfu: float, verdict: str, text: str) -> None:
    found = references(program(device), mfu, None)["mfu"]
    assert (found.verdict, found.text) == (verdict, f"large language models reach {text}")
    assert found.url.startswith("https://arxiv.org/abs/")


def test_other_programs_and_devices_have_no_reference() -> None:
    h100 = "NVIDIA H100 80GB HBM3"
    for signals in (
        program(h100, family=KernelFamily.MATMUL),  # no transformer, as far as the profile shows
        program("NVIDIA GeForce RTX 4090"),  # nothing published
        program(h100, operator="aten::addmm"),  # forward only
    ):
        assert "mfu" not in references(signals, 0.2, None)
    assert references(program(h100), None, None) == {}


@pytest.mark.parametrize(
    ("share", "verdict"), [(0.0, "good"), (0.049, "good"), (0.05, "fair"), (0.2, "poor")]
)
def test_waiting_for_input_in_training(share: float, verdict: str) -> None:
    # The classes of the TensorFlow Profiler: up to 5 %, up to 20 %, and more.
    found = references(program("any", family=KernelFamily.MATMUL), None, share)
    assert found["input-wait"].verdict == verdict
    inference = program("any", operator="aten::addmm")
    assert references(inference, None, share) == {}
