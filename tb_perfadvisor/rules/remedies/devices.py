"""Remedies that look at devices, or choose them, with the tools of their vendor."""

from __future__ import annotations

from tb_perfadvisor.rules.finding import Remedy
from tb_perfadvisor.rules.remedies.variants import variants
from tb_perfadvisor.signals.workload.parts import SERVERS, Part

_THROTTLED = (
    "If device time grows for the same work, check the device's clocks and temperature: it may "
    "throttle."
)
_NVIDIA_SMI = "https://docs.nvidia.com/deploy/nvidia-smi/index.html"
_AMD_SMI = "https://rocm.docs.amd.com/projects/amdsmi/en/latest/how-to/amdsmi-cli-tool.html"

WATCH_CLOCKS = variants(
    "watch-clocks",
    Remedy(
        text=_THROTTLED,
        snippet="nvidia-smi --format=csv -l 1 \\\n"
        "    --query-gpu=clocks.sm,temperature.gpu,clocks_event_reasons.active",
        language="bash",
        needs=(Part.NVIDIA,),
        reference=_NVIDIA_SMI,
    ),
    Remedy(
        text=_THROTTLED,
        snippet="amd-smi monitor --gfx --temperature --violation --watch 1",
        language="bash",
        needs=(Part.AMD,),
        reference=_AMD_SMI,
    ),
    Remedy(text=_THROTTLED, unless=(Part.CPU_ONLY,)),
    Remedy(
        text="If the same work takes longer and longer, check the processor's clock and "
        "temperature, and what else runs on the machine.",
        needs=(Part.CPU_ONLY,),
    ),
    framework="",
)
"""See whether a device is throttled."""

_USE_FEWER = "Or make only the used devices visible, and leave the others to other jobs."
VISIBLE_DEVICES = variants(
    "visible-devices",
    Remedy(
        text=_USE_FEWER,
        snippet="export CUDA_VISIBLE_DEVICES=0",
        language="bash",
        needs=(Part.NVIDIA,),
        reference="https://docs.nvidia.com/cuda/cuda-programming-guide/",
    ),
    Remedy(
        text=_USE_FEWER,
        snippet="export HIP_VISIBLE_DEVICES=0",
        language="bash",
        needs=(Part.AMD,),
        reference="https://rocm.docs.amd.com/en/latest/conceptual/gpu-isolation.html",
    ),
    Remedy(text=_USE_FEWER),
    framework="",
)
"""Show a program only some devices."""

ALL_DEVICES = variants(
    "all-devices",
    Remedy(
        text="Serve with all devices: split the model over them, or run a copy on each.",
        snippet="vllm serve MODEL --tensor-parallel-size 4  # or --data-parallel-size 4",
        language="bash",
        needs=(Part.VLLM,),
        reference="https://docs.vllm.ai/en/stable/serving/parallelism_scaling/",
    ),
    Remedy(
        text="Serve with all devices: split the model over them, or run a copy on each.",
        snippet="python -m sglang.launch_server --model-path MODEL --tp-size 4  # or --dp-size 4",
        language="bash",
        needs=(Part.SGLANG,),
        reference="https://github.com/sgl-project/sglang/blob/main/python/sglang/srt/"
        "server_args.py",
    ),
    Remedy(
        text="Serve with all devices: split the model over them, or run a copy on each.",
        snippet="llm = LLM(model=name, tensor_parallel_size=4)",
        needs=(Part.TENSORRT_LLM,),
        reference="https://nvidia.github.io/TensorRT-LLM/llm-api/reference.html",
    ),
    Remedy(
        text="Train on all devices: one process for each.",
        snippet="torchrun --nproc-per-node=gpu train.py",
        language="bash",
        needs=(Part.TRAINING,),
        reference="https://docs.pytorch.org/docs/stable/elastic/run.html",
    ),
    Remedy(
        text="If there is more work, use all devices: run one process on each, with its share of "
        "the inputs.",
        unless=SERVERS,
        reference="https://docs.pytorch.org/docs/stable/elastic/run.html",
    ),
)
"""Use all devices of the machine, in PyTorch."""
