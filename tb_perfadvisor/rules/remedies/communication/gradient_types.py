"""Remedies that send gradients in fewer bits."""

from __future__ import annotations

from typing import Final

from tb_perfadvisor.rules.finding import Remedy
from tb_perfadvisor.rules.remedies.variants import variants
from tb_perfadvisor.signals.workload.parts import Part

_FSDP_DOCS: Final = "https://pytorch.org/docs/stable/distributed.fsdp.fully_shard.html"
_MEGATRON_DOCS: Final = "https://docs.nvidia.com/megatron-core/developer-guide/latest/"

NARROW_GRADIENTS: Final = variants(
    "gradient-type",
    Remedy(
        text="Reduce gradients in bfloat16, which halves the bytes.",
        snippet="pretrain_gpt.py --bf16 --grad-reduce-in-bf16",
        language="bash",
        needs=(Part.MEGATRON,),
        unless=(Part.GRADIENTS_16_BIT, Part.FORWARD_ONLY),
        reference=_MEGATRON_DOCS,
    ),
    Remedy(
        text="Reduce gradients in bfloat16, which halves the bytes.",
        snippet='config["communication_data_type"] = "bf16"  # of DeepSpeed',
        needs=(Part.DEEPSPEED,),
        unless=(Part.GRADIENTS_16_BIT,),
        reference="https://www.deepspeed.ai/docs/config-json/",
    ),
    Remedy(
        text="Send gradients in bfloat16, which halves the bytes.",
        snippet=(
            "from torch.distributed.algorithms.ddp_comm_hooks import default_hooks\n"
            "strategy = DDPStrategy(ddp_comm_hook=default_hooks.bf16_compress_hook)\n"
            "trainer = Trainer(strategy=strategy)"
        ),
        needs=(Part.LIGHTNING, Part.DDP),
        unless=(Part.GRADIENTS_16_BIT,),
        reference="https://lightning.ai/docs/pytorch/stable/advanced/ddp_optimizations.html",
    ),
    Remedy(
        text="Send gradients in bfloat16, which halves the bytes.",
        snippet=(
            "handler = DistributedDataParallelKwargs(comm_hook=DDPCommunicationHookType.BF16)\n"
            "accelerator = Accelerator(kwargs_handlers=[handler])"
        ),
        needs=(Part.ACCELERATE, Part.DDP),
        unless=(Part.GRADIENTS_16_BIT, Part.HF_TRAINER),
        reference="https://huggingface.co/docs/accelerate/usage_guides/ddp_comm_hook",
    ),
    Remedy(
        text="Send gradients in bfloat16, which halves the bytes.",
        snippet=(
            "from torch.distributed.algorithms.ddp_comm_hooks import default_hooks\n"
            "ddp_model.register_comm_hook(state=None, hook=default_hooks.bf16_compress_hook)"
        ),
        needs=(Part.DDP,),
        unless=(Part.GRADIENTS_16_BIT,),
        reference="https://pytorch.org/docs/stable/ddp_comm_hooks.html",
    ),
    Remedy(
        text="Reduce gradients in bfloat16, which halves the bytes.",
        snippet=(
            "policy = MixedPrecisionPolicy(\n"
            "    param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16\n"
            ")\n"
            "fully_shard(layer, mp_policy=policy)\n"
            "# FullyShardedDataParallel: mixed_precision=MixedPrecision(reduce_dtype=…)"
        ),
        needs=(Part.FSDP,),
        unless=(Part.GRADIENTS_16_BIT,),
        reference=_FSDP_DOCS,
    ),
    Remedy(
        text="Average the gradients in bfloat16, and cast the result back.",
        snippet=(
            "grads = jax.tree.map(lambda g: g.astype(jnp.bfloat16), grads)\n"
            'grads = jax.lax.pmean(grads, axis_name="data")'
        ),
        framework="jax",
        unless=(Part.FORWARD_ONLY,),
        reference="https://docs.jax.dev/en/latest/_autosummary/jax.lax.pmean.html",
    ),
)
ANY_TENSOR_NARROW: Final = Remedy(
    text="If the program reduces the tensors itself, cast them to 16 bits before.",
    snippet=(
        "narrow = tensor.to(torch.bfloat16)\n"
        "torch.distributed.all_reduce(narrow)\n"
        "tensor.copy_(narrow)"
    ),
    framework="pytorch",
    unless=(Part.DDP, Part.FSDP, Part.DEEPSPEED, Part.MEGATRON),
    change="gradient-type",
    reference="https://pytorch.org/docs/stable/distributed.html#torch.distributed.all_reduce",
)
"""For programs whose gradients no known wrapper reduces."""
