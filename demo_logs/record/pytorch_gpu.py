"""Records two PyTorch pairs on a GPU: fp32 against bf16, and with and without synchronization.

Precision: the same transformer layer trained in float32 (TF32 off) and under bf16 autocast.
Synchronization: each step reads every gradient's norm with ``.item()``, against norms that are
computed in one call and stay on the device.

    python demo_logs/record/pytorch_gpu.py
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch
from pairs import Pair, Role, Variant, mean_step_ns, output_directory, record_pair
from pytorch_profile import profile_steps
from torch import nn

NO_GPU_EXIT_STATUS = 2
STEP_DEFINITION = (
    "mean wall time of 15 consecutive training steps after 5 warm-up steps, each ended by "
    "torch.cuda.synchronize() in both variants, without the profiler"
)
NOTES = (
    "Both variants wait for the device at the end of each step, to make the step time that of "
    "the device's work."
)

PRECISION = Pair(
    slow=Variant(
        directory="pytorch_gpu_fp32",
        cause="matrix products of a transformer layer run in float32, without TF32",
        acceptable_first_findings=["full-precision-compute", "tf32-off"],
        must_not_find=["input-stall"],
    ),
    fixed=Variant(
        directory="pytorch_gpu_bf16",
        cause="none: the same layer under torch.autocast('cuda', torch.bfloat16)",
        acceptable_first_findings=[],
        must_not_find=["full-precision-compute", "tf32-off", "input-stall"],
    ),
    framework="pytorch",
    packages=["torch"],
    step_definition=STEP_DEFINITION,
    notes=NOTES,
    script="pytorch_gpu.py",
    device="cuda",
)

SYNCHRONIZATION = Pair(
    slow=Variant(
        directory="pytorch_gpu_synchronizing",
        cause="each step reads every gradient's norm on the host with .item(), right after the "
        "operator that computes it",
        acceptable_first_findings=["device-synchronization", "launch-bound"],
        must_not_find=["input-stall", "memory-near-capacity"],
    ),
    fixed=Variant(
        directory="pytorch_gpu_asynchronous",
        cause="none: the norms are computed in one call and stay on the device",
        acceptable_first_findings=[],
        must_not_find=["input-stall", "memory-near-capacity"],
    ),
    framework="pytorch",
    packages=["torch"],
    step_definition=STEP_DEFINITION,
    notes=NOTES,
    script="pytorch_gpu.py",
    device="cuda",
)


class Training:
    """A stack of transformer layers on the GPU, with one batch that stays on it."""

    def __init__(self, layers: int, width: int, batch_size: int, length: int) -> None:
        """Builds the model; larger sizes make the step compute-bound, smaller launch-bound."""
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(width, nhead=8, batch_first=True, dropout=0.0)
        self.model = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False).cuda()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        self.batch = torch.randn(batch_size, length, width, device="cuda")

    def backward(self, precision: AbstractContextManager[object]) -> None:
        """Forward and backward pass, the forward under the given autocast context."""
        self.optimizer.zero_grad()
        with precision:
            loss = self.model(self.batch).square().mean()
        loss.backward()


def precision_step(role: Role) -> Callable[[], None]:
    """A compute-bound step, in float32 (slow) or under bf16 autocast (fixed)."""
    training = Training(layers=2, width=1024, batch_size=16, length=512)

    def step() -> None:
        autocast = torch.autocast("cuda", torch.bfloat16)
        training.backward(nullcontext() if role == "slow" else autocast)
        training.optimizer.step()
        torch.cuda.synchronize()

    return step


def synchronization_step(role: Role) -> Callable[[], None]:
    """A step of small kernels that reads the gradients' norms one by one, or in one call."""
    training = Training(layers=8, width=256, batch_size=8, length=64)

    def step() -> None:
        training.backward(nullcontext())
        gradients = [p.grad for p in training.model.parameters() if p.grad is not None]
        if role == "slow":
            max(gradient.norm().item() for gradient in gradients)
        else:
            torch.stack(torch._foreach_norm(gradients)).max()
        training.optimizer.step()
        torch.cuda.synchronize()

    return step


def record_with(output: Path, pair: Pair, new_step: Callable[[Role], Callable[[], None]]) -> None:
    """Measures, records and labels one pair."""
    record_pair(
        output,
        pair,
        measure=lambda role: mean_step_ns(new_step(role)),
        record=lambda role, directory: profile_steps(new_step(role), directory),
    )


def main() -> int:
    """Records both pairs, or says that there is no GPU."""
    output = output_directory(__doc__)
    if not torch.cuda.is_available():
        print("These recordings need a CUDA GPU, and PyTorch sees none here.", file=sys.stderr)
        return NO_GPU_EXIT_STATUS
    torch.backends.cuda.matmul.allow_tf32 = False
    record_with(output, PRECISION, precision_step)
    record_with(output, SYNCHRONIZATION, synchronization_step)
    return 0


if __name__ == "__main__":
    sys.exit(main())
