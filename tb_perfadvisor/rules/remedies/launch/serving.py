"""Remedies for what an inference server does between two steps."""

from __future__ import annotations

from tb_perfadvisor.rules.finding import Remedy
from tb_perfadvisor.rules.remedies.variants import variants
from tb_perfadvisor.signals.workload.parts import Part

OVERLAPPED_SCHEDULE = variants(
    "overlapped-schedule",
    Remedy(
        text="The server already prepares the next step while the device runs the current one, so "
        "the host itself is too slow: give the process that runs the model cores of its own, and "
        "leave out what it computes for each request, such as log probabilities.",
        needs=(Part.SERVER, Part.OVERLAPPED_SCHEDULE),
        reference="https://docs.vllm.ai/en/stable/configuration/optimization/",
    ),
    Remedy(
        text="Let vLLM schedule the next step while the device runs the current one, and answer "
        "requests in another process than the one that runs the model.",
        snippet="vllm serve MODEL --async-scheduling",
        language="bash",
        needs=(Part.VLLM,),
        reference="https://docs.vllm.ai/en/stable/configuration/optimization/",
    ),
    Remedy(
        text="Let SGLang prepare the next batch while the device runs the current one: leave "
        "--disable-overlap-schedule out.",
        needs=(Part.SGLANG,),
        reference="https://github.com/sgl-project/sglang/blob/main/python/sglang/srt/server_args.py",
    ),
    Remedy(
        text="Let TensorRT-LLM prepare the next step while the device runs the current one: leave "
        "disable_overlap_scheduler off.",
        snippet="llm = LLM(model=name, disable_overlap_scheduler=False)",
        needs=(Part.TENSORRT_LLM,),
        reference="https://nvidia.github.io/TensorRT-LLM/features/overlap-scheduler.html",
    ),
)
"""Prepare the next step on the host while the device runs the current one."""
