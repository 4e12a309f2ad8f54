"""Words that betray which part of a program a piece of advice is about.

They are written here by hand, independent of what the advice declares to need.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from functools import cache

NEEDS = {
    r"DataLoader\(|(?<!MultiprocessingOptions\()num_workers|num-workers|persistent_workers|prefetch_factor"
    r"|dataloader[_.]pin_memory|in the loader|the loader's": "DataLoader|DataLoader with workers",
    r"no_sync|bucket_cap_mb|broadcast_buffers|bucket_view": "DDP",
    r"DistributedDataParallel": "DDP|DataParallel",
    r"\bddp": "DDP|Megatron",
    r"prof(?:iler)?\.step\(\)": "prof.step()",
    r"nvidia-smi|\bnsys\b|\bncu\b|nvtx|CUDA_VISIBLE_DEVICES": "NVIDIA",
    r"rocm-smi|amd-smi|rocprof|HIP_VISIBLE_DEVICES|MIOPEN": "AMD",
    r"TrainingArguments": "Hugging Face Trainer",
    r"LightningModule|\btrainer\.fit|lightning": "Lightning",
    r"\bvllm\b": "vLLM",
    r"\bLLM\(": "vLLM",
    r"sglang": "SGLang",
    r"deepspeed": "DeepSpeed",
    r"megatron|pretrain_gpt": "Megatron",
    r"torchtitan|run_train\.sh": "torchtitan",
    r"diffusers|num_images_per_prompt|pipe\.transformer": "Diffusers",
    r"\bpipe\(": "Hugging Face pipeline|Diffusers",
    r"torchrec": "TorchRec",
    r"torch\._inductor(?![\s\S]*torch\.compile\()": "Inductor",
}
"""Words (regular expressions), and the parts that justify them: one must be present."""

UNLESS = {
    r"\.cuda\(|torch\.cuda|pin_memory|['\"]cuda['\"]|GPU:0|GPU graph": "CPU|TPU",
    r"NCCL|nccl|nvidia-smi|xla_gpu|\bCUDA_|NVLink|InfiniBand|GPUs?\b": "TPU",
    r"torch\.compile\(|torch_compile=True|dynamo_backend|compile_repeated_blocks"
    r"|--compile": "torch.compile|GPU graphs",
    r"reduce-overhead|cudagraphs\b|CUDA graph|enforce_eager": "GPU graphs",
    r"\bfused=True|adamw_torch_fused|foreach=True": "fused optimizer",
    r"compress_hook": "16-bit gradients",
    r"pin_memory=True\)\n|dataloader[_.]pin_memory": "copies from pinned memory",
    r"torch\.cuda\.Stream\(\)": "copies on a stream of their own",
}
"""Words (regular expressions), and the parts that rule them out: none may be present."""

OF_ADAM = re.compile(r"optim\.Adam|adamw_torch|\"AdamW\"")
OTHER_OPTIMIZERS = frozenset(
    {"SGD", "optimizer with a foreach form only", "optimizer that is not PyTorch's"}
)
"""Whoever uses only these did not choose Adam."""

OF_TRAINING = re.compile(
    r"train_step\(|loss_fn|\bloss\.|optimizer\.|optim\.Adam|backward\(\)|GradScaler|shuffle=True"
    r"|converges|zero_grad"
)
"""Words that only make sense in training."""


@cache
def _named(words: str | re.Pattern[str], advice: str) -> re.Match[str] | None:
    return re.search(words, advice)


def misfits(advice: str, parts: Collection[str]) -> Iterator[str]:
    """What a remedy names that the program lacks or already has.

    Args:
        advice: Text and code of the remedy.
        parts: Labels of the parts that were seen in the program.
    """
    for words, wanted in NEEDS.items():
        if (found := _named(words, advice)) and not set(parts) & set(wanted.split("|")):
            yield f"{found[0]!r} without {wanted}"
    for words, unwanted in UNLESS.items():
        if (found := _named(words, advice)) and (has := set(parts) & set(unwanted.split("|"))):
            yield f"{found[0]!r} despite {', '.join(sorted(has))}"
    others = set(parts) & OTHER_OPTIMIZERS
    if others and "Adam" not in parts and (found := _named(OF_ADAM, advice)):
        yield f"{found[0]!r} for {', '.join(sorted(others))}"
    serves = set(parts) & {"forward only", "inference server"}
    if serves and (found := _named(OF_TRAINING, advice)):
        yield f"{found[0]!r} in {', '.join(sorted(serves))}"
