"""What programs real traces are of, by what their raw events show."""

from __future__ import annotations

from pathlib import Path

import pytest

from tb_perfadvisor.signals import reference_worker
from tb_perfadvisor.signals.workload.workload import Part, workload
from tb_perfadvisor.testing import run_of
from tests.support.corpus_traces import read

LOADER = (Part.LOADER, Part.LOADER_WORKERS)


@pytest.mark.parametrize(
    ("pattern", "mode", "framework", "has", "lacks"),
    [
        (
            "astra-sim/megatron_tp8/*0*.json*",
            "forward only",  # 0 autograd events, 81 _ReduceFromModelParallelRegion
            "Megatron",
            (Part.TENSOR_PARALLEL, Part.TORCH_COMPILE, Part.NVIDIA),
            (Part.DDP, Part.OPTIMIZER, Part.DEVICE_GRAPHS),
        ),
        (
            "tracelens/inference_sglang_decode/*/*.json*",
            "inference server",
            "SGLang",
            (Part.DEVICE_GRAPHS, Part.AMD),
            (Part.DDP, Part.NVIDIA, Part.STEP_CALLS, *LOADER),
        ),
        (
            "tracelens/inference_vllm_prefilldecode_piecewise/*/*.json*",
            "inference server",
            "vLLM",
            (Part.DEVICE_GRAPHS, Part.TORCH_COMPILE),
            (Part.SGLANG, *LOADER),
        ),
        (
            "navi-ai-lab/*_async_llm/*.json*",
            "front end of an inference server",
            "vLLM",
            (Part.SERVER, Part.FRONT_END),
            (Part.DEVICE_GRAPHS, *LOADER),
        ),
        (
            "tracelens/mi300/resnet_act_checkpoint/*.json*",
            "training",
            "unknown",
            (Part.DDP, Part.GRADIENTS_16_BIT, Part.CHECKPOINTING, Part.AMD, Part.STEP_CALLS),
            (Part.TENSOR_PARALLEL, Part.NVIDIA),
        ),
        (
            "tugot17/llama_tp2_ann/*0*.json*",
            "forward only",
            "unknown",
            (Part.TENSOR_PARALLEL, Part.NVIDIA),
            (Part.DDP, Part.OPTIMIZER, *LOADER),
        ),
        (
            "tracelens/h100/google_owlv2-large-patch14-ensemble/*.json*",
            "forward only",
            "Hugging Face pipeline",
            (Part.LOADER,),
            (Part.LOADER_WORKERS, Part.DDP),
        ),
        (
            "hta/df_index_resolver/*/*.json*",
            "training",
            "unknown",
            # CompiledFunctionBackward of functorch, and no Triton kernel.
            (Part.TORCH_COMPILE, Part.SGD),
            (Part.INDUCTOR, Part.ADAM, Part.OWN_OPTIMIZER, Part.FOREACH_UPDATES),
        ),
        (
            "modded-nanogpt/current_a/*.json*",
            "training",
            "unknown",
            (Part.INDUCTOR, Part.OWN_OPTIMIZER),  # NorMuon and DistAdam
            (Part.ADAM, Part.SGD),
        ),
        (
            "hta/trace_diff_control/*.json*",
            "training",
            "TorchRec",
            # 108 copies of more than 64 KiB, all pinned, all on stream 22, which has no kernels.
            (Part.PINNED_BATCHES, Part.COPY_STREAM, Part.FUSED_OPTIMIZER),
            (Part.OWN_OPTIMIZER,),
        ),
        (
            "kineto/resnet50_num_workers_4/*.json*",
            "training",
            "unknown",
            (Part.SGD, Part.LOADER_WORKERS),
            (Part.PINNED_BATCHES, Part.COPY_STREAM, Part.OWN_OPTIMIZER),  # pageable, on stream 7
        ),
        (
            "hta/mtia_trace_single_rank/*/*.json*",
            "training",
            "TorchRec",
            (Part.DDP, Part.OPTIMIZER),
            (Part.NVIDIA, Part.AMD, Part.CPU_ONLY),
        ),
        (
            # The decoder's transposed convolutions run kernels named dgrad: no training.
            "pytorch-labs/03*/*.json*",
            "forward only",
            "unknown",
            (Part.TORCH_COMPILE, Part.DEVICE_GRAPHS),
            (Part.TRAINING, *LOADER),
        ),
    ],
    ids=lambda value: value.split("/*")[0] if isinstance(value, str) and "/" in value else "",
)
def test_the_program_is_recognized(
    corpus: Path,
    pattern: str,
    mode: str,
    framework: str,
    has: tuple[Part, ...],
    lacks: tuple[Part, ...],
) -> None:
    program = workload(reference_worker(run_of(read(corpus, pattern))))
    assert (program.mode, program.framework) == (mode, framework)
    assert [part for part in has if not program.has(part)] == []
    assert [part for part in lacks if program.has(part)] == []
