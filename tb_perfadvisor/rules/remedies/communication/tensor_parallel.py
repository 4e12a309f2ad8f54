"""Remedies for tensor-parallel layers.

Sources of options: `vllm serve --help`, SGLang's page of server arguments, and
megatron/training/arguments.py.
"""

from __future__ import annotations

from typing import Final

from tb_perfadvisor.rules.finding import Remedy
from tb_perfadvisor.rules.remedies.variants import variants
from tb_perfadvisor.signals.workload.parts import SERVERS, Part

_MEGATRON_DOCS: Final = "https://docs.nvidia.com/megatron-core/developer-guide/latest/"
_VLLM_DOCS: Final = "https://docs.vllm.ai/en/stable/configuration/optimization/"
_SGLANG_DOCS: Final = "https://docs.sglang.ai/advanced_features/server_arguments.html"

NARROW_PARTIAL_SUMS: Final = Remedy(
    text="Reduce partial sums of products in 16 bits, which halves what is sent: a product that is "
    "asked for a 32-bit result is reduced in 32 bits.",
    snippet="y = jnp.einsum('bf,fm->bm', x, w, preferred_element_type=jnp.bfloat16)",
    framework="jax",
    reference="https://docs.jax.dev/en/latest/_autosummary/jax.numpy.einsum.html",
)

OVERLAP_TENSOR_PARALLEL: Final = variants(
    "tensor-parallel-overlap",
    Remedy(
        text="Split the activations between the layers as well (sequence parallelism), and overlap "
        "the exchange with the matrix products.",
        snippet="pretrain_gpt.py --sequence-parallel --tp-comm-overlap",
        language="bash",
        needs=(Part.MEGATRON,),
        reference=_MEGATRON_DOCS,
    ),
    Remedy(
        text="Fuse the all-reduces with the normalization that follows.",
        snippet=(
            "vllm serve MODEL \\\n"
            '    --compilation-config \'{"pass_config": {"fuse_allreduce_rms": true}}\''
        ),
        language="bash",
        needs=(Part.VLLM,),
        reference="https://docs.vllm.ai/en/stable/design/fusions/",
    ),
    Remedy(
        text="Fuse the all-reduces with the normalization that follows.",
        snippet=(
            "python -m sglang.launch_server --model-path MODEL --enable-flashinfer-allreduce-fusion"
        ),
        language="bash",
        needs=(Part.SGLANG,),
        reference=_SGLANG_DOCS,
    ),
    Remedy(
        text="Split the activations between the layers as well (sequence parallelism), and let the "
        "compiler overlap the exchange with the matrix products (async tensor parallelism).",
        snippet=("torch._inductor.config._micro_pipeline_tp = True\nmodel = torch.compile(model)"),
        unless=(Part.SERVER, Part.MEGATRON, Part.DEEPSPEED, Part.DEVICE_GRAPHS, Part.TORCH_COMPILE),
        reference="https://pytorch.org/tutorials/intermediate/TP_tutorial.html",
    ),
    Remedy(
        text="Let the compiler overlap the exchange with the matrix products (async tensor "
        "parallelism). It needs sequence parallelism.",
        snippet=("torch._inductor.config._micro_pipeline_tp = True\n"),
        needs=(Part.TORCH_COMPILE,),
        unless=(Part.SERVER, Part.MEGATRON, Part.DEEPSPEED),
        reference="https://pytorch.org/tutorials/intermediate/TP_tutorial.html",
    ),
)
CUSTOM_ALL_REDUCE: Final = variants(
    "custom-all-reduce",
    Remedy(
        text="Reduce messages of up to 8 MiB with vLLM's own all-reduce, which takes one or two "
        "steps instead of a ring: leave --disable-custom-all-reduce out, and keep tensor-parallel "
        "ranks within a node, 2, 4, 6 or 8 of them.",
        snippet="vllm serve MODEL --tensor-parallel-size 4  # no --disable-custom-all-reduce",
        language="bash",
        needs=(Part.VLLM,),
        reference="https://docs.vllm.ai/en/stable/api/vllm/distributed/device_communicators/"
        "custom_all_reduce/",
    ),
    Remedy(
        text="Reduce small messages with SGLang's own all-reduce, which takes one or two steps "
        "instead of a ring: leave --disable-custom-all-reduce out, and keep tensor-parallel ranks "
        "within a node.",
        snippet="python -m sglang.launch_server --model-path MODEL --tp-size 4  "
        "# no --disable-custom-all-reduce",
        language="bash",
        needs=(Part.SGLANG,),
        reference=_SGLANG_DOCS,
    ),
    Remedy(
        text="Let TensorRT-LLM choose the all-reduce by the size of the message: small ones take "
        "one or two steps instead of a ring.",
        snippet='llm = LLM(model=name, tensor_parallel_size=4, allreduce_strategy="AUTO")',
        needs=(Part.TENSORRT_LLM,),
        reference="https://nvidia.github.io/TensorRT-LLM/llm-api/reference.html",
    ),
    unless=(Part.CUSTOM_ALL_REDUCE, Part.CPU_ONLY, Part.TPU),
)
"""Reduce the small messages of decode steps faster."""
FEWER_TENSOR_PARALLEL_RANKS: Final = variants(
    "tensor-parallel-size",
    Remedy(
        text="If the model fits on fewer devices, use fewer tensor-parallel ranks and more "
        "replicas.",
        snippet="vllm serve MODEL --tensor-parallel-size 2 --data-parallel-size 4",
        language="bash",
        needs=(Part.VLLM,),
        reference=_VLLM_DOCS,
    ),
    Remedy(
        text="If the model fits on fewer devices, use fewer tensor-parallel ranks and more "
        "replicas.",
        snippet="python -m sglang.launch_server --model-path MODEL --tp-size 2 --dp-size 4",
        language="bash",
        needs=(Part.SGLANG,),
        reference=_SGLANG_DOCS,
    ),
    Remedy(
        text="Use fewer tensor-parallel ranks if the model fits, and keep them within a node. Each "
        "layer then sends less and computes more.",
        snippet="pretrain_gpt.py --tensor-model-parallel-size 4",
        language="bash",
        needs=(Part.MEGATRON,),
        reference=_MEGATRON_DOCS,
    ),
    Remedy(
        text="Use fewer tensor-parallel ranks if the model fits, and keep them within a node. Each "
        "layer then sends less and computes more.",
        snippet='mesh = init_device_mesh(device.type, (4, 2), mesh_dim_names=("dp", "tp"))',
        unless=(*SERVERS, Part.MEGATRON),
        reference="https://pytorch.org/tutorials/intermediate/TP_tutorial.html",
    ),
)
SHARDED_LOGITS: Final = variants(
    "logits",
    Remedy(
        text="If it gathers the logits, compute them for the last position only: generation needs "
        "no others.",
        snippet="logits = output(hidden[:, -1:])  # not of all positions of the prompt",
        needs=(Part.FORWARD_ONLY,),
        unless=SERVERS,
        reference="https://huggingface.co/docs/transformers/llm_optims",
    ),
    Remedy(
        text="If it gathers the logits, keep them sharded by vocabulary. The loss can be "
        "computed from the shards.",
        snippet=(
            "plan = ColwiseParallel(output_layouts=Shard(-1), use_local_output=False)\n"
            "with loss_parallel():\n"
            "    loss = F.cross_entropy(logits, labels)\n"
            "    loss.backward()"
        ),
        needs=(Part.TRAINING,),
        unless=(Part.MEGATRON,),
        reference="https://pytorch.org/docs/stable/distributed.tensor.parallel.html",
    ),
)
