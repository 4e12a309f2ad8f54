"""How to record what a profile lacks, with Nsight Systems.

Source: Nsight Systems User Guide, "CLI Profile Command Switch Options".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tb_perfadvisor.signals.recording.hint import Hint
from tb_perfadvisor.signals.recording.needs import Need
from tb_perfadvisor.signals.workload.workload import Part


def _hint(text: str, *needs: Part) -> Hint:
    return Hint(text=text, needs=(Part.NSIGHT, *needs))


NSIGHT_SHAPES: Final = _hint(
    "Record with `nsys profile --pytorch=autograd-shapes-nvtx`, or run the steps in "
    "torch.autograd.profiler.emit_nvtx(record_shapes=True)."
)
_OPERATORS: Final = _hint(
    "Record with `nsys profile --pytorch=autograd-nvtx`, or run the steps in "
    "torch.autograd.profiler.emit_nvtx()."
)
NSIGHT_CUDA: Final = _hint("Record with `nsys profile --trace=cuda,nvtx,osrt`.")
_STEPS: Final = _hint(
    "Mark the steps: torch.cuda.nvtx.range_push(f'step {i}') at the beginning of each, and "
    "torch.cuda.nvtx.range_pop() at its end."
)
NSIGHT_STACKS: Final = _hint(
    "Name the parts of the step with torch.cuda.nvtx.range_push and range_pop. torch.profiler "
    "records Python functions, with with_stack=True.",
    Part.NVIDIA,
)
NSIGHT_MEMORY: Final = _hint(
    "Record with torch.profiler and profile_memory=True: Nsight Systems knows nothing of the "
    "allocator."
)
_TORCH_PROFILER: Final = _hint("Record with torch.profiler: Nsight Systems does not record this.")

NSIGHT_HINTS: Final[Mapping[Need, Hint]] = {
    Need.WORK: NSIGHT_CUDA,
    Need.DEVICE_EVENTS: NSIGHT_CUDA,
    Need.KERNELS: _hint("Record with `nsys profile --trace=cuda --cuda-graph-trace=node`."),
    Need.HOST_EVENTS: _OPERATORS,
    Need.LAUNCH_LINKS: NSIGHT_CUDA,
    Need.LAUNCHED_WORK: NSIGHT_CUDA,
    Need.ORIGINS: _OPERATORS,
    Need.INPUT: _OPERATORS,
    Need.INPUT_STAGES: _TORCH_PROFILER,
    Need.FILE_READS: _hint("Record with `nsys profile --trace=cuda,nvtx,osrt`."),
    Need.STEPS: _STEPS,
    Need.SEVERAL_STEPS: _hint("Record more steps: 5 to 20 are enough."),
    Need.DISPATCH: _OPERATORS,
    Need.PYTORCH: _OPERATORS,
    Need.PYTHON_FRAMES: _TORCH_PROFILER,
    Need.KERNEL_PRECISION: NSIGHT_SHAPES,
    Need.SHAPES: NSIGHT_SHAPES,
    Need.MEMORY: _TORCH_PROFILER,
    Need.MEMORY_CHANGES: _TORCH_PROFILER,
    Need.COLLECTIVE_SIZES: _hint(
        "Export with `nsys export --type sqlite --include-blobs true`: NCCL states the sizes of "
        "its messages in blobs."
    ),
}
"""Instead of the hints for the framework's own profiler."""
