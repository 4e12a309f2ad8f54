"""A drawn trace of an inference server, step by step."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from tb_perfadvisor.testing import TraceBuilder, us
from tb_perfadvisor.trace import EventKind, KernelFamily, Precision, Trace

_PREPARE = "vllm/v1/worker/gpu_model_runner.py(1518): _prepare_inputs"
_SCHEDULE = "vllm/v1/core/sched/scheduler.py(321): schedule"
_OUTPUT = "vllm/v1/engine/output_processor.py(412): process_outputs"


class Served(Struct, frozen=True):
    """A step: its batch, how long the device works on it, and what the host does around it."""

    decodes: int = 0
    prefills: int = 0
    prompt_tokens: int = 0
    device_us: int = 5_000
    """Of all its kernels, which run one after the other."""
    replays: bool = True
    """Whether one launch replays them as a graph; if not, each has an operator and a launch."""
    kernels: int = 10
    grid: int = -1
    """Blocks of each kernel."""
    gap_us: int = 0
    """Between kernels, while the host launches the next one."""
    prepare_us: int = 100
    """Before the first launch."""
    schedule_us: int = 100
    """After the device has done the step's work, half of it for the results."""

    @property
    def name(self) -> str:
        """The annotation, as vLLM writes it."""
        return (
            f"execute_context_{self.prefills}({self.prompt_tokens})"
            f"_generation_{self.decodes}({self.decodes})"
        )


def server_trace(steps: Iterable[Served], device: str = "NVIDIA H100 80GB HBM3") -> Trace:
    """A trace of some steps. Their host and device take turns, without overlap."""
    builder = TraceBuilder().device(device)
    at = 0
    for number, step in enumerate(steps):
        at = _add(builder, number, step, at)
    return builder.build()


def _add(builder: TraceBuilder, number: int, step: Served, at: int) -> int:
    begin, key = at, f"graph {number}"
    each = us(step.device_us) // step.kernels
    builder.host(EventKind.PYTHON, _PREPARE, at, at + us(step.prepare_us))
    at += us(step.prepare_us)
    if step.replays:
        builder.launch(at, at + us(5), name="cudaGraphLaunch", key=key)
        at += us(5)
    launched = at
    for kernel in range(step.kernels):
        if not step.replays:
            key = f"kernel {number} {kernel}"
            begins = at + (us(step.gap_us) if kernel else 0)
            builder.operator("aten::mm", begins, begins + us(5), launches=False)
            builder.launch(begins + us(1), begins + us(4), key=key)
            launched = begins + us(5)
            at = launched
        builder.kernel(
            "nvjet_hsh_64x8_64x16_4x1_v_bz_TNT",  # a product of the corpus' recordings
            at,
            at + each,
            family=KernelFamily.MATMUL,
            precision=Precision.BITS_16,
            grid_blocks=step.grid,
            launched_by=key,
        )
        at += each
    builder.annotation(step.name, begin, launched)
    half = us(step.schedule_us) // 2
    builder.host(EventKind.PYTHON, _OUTPUT, at, at + half)
    builder.host(EventKind.PYTHON, _SCHEDULE, at + half, at + us(step.schedule_us))
    return at + us(step.schedule_us)
