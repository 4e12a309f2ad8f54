"""Remedies that compile a program, or parts of it."""

from __future__ import annotations

from tb_perfadvisor.rules.finding import Remedy
from tb_perfadvisor.rules.remedies.variants import variants
from tb_perfadvisor.signals.workload.parts import SERVERS, Part

COMPILE = variants(
    "compile",
    Remedy(
        text="Let vLLM compile the model: leave enforce_eager off.",
        snippet="llm = LLM(model=name, enforce_eager=False)  # or no --enforce-eager in vllm serve",
        needs=(Part.VLLM,),
        reference="https://docs.vllm.ai/en/stable/design/torch_compile/",
    ),
    Remedy(
        text="Let SGLang compile the model for small batches.",
        snippet="python -m sglang.launch_server --model-path MODEL --enable-torch-compile",
        language="bash",
        needs=(Part.SGLANG,),
        reference="https://github.com/sgl-project/sglang/blob/main/python/sglang/srt/server_args.py",
    ),
    Remedy(
        text="Let the Trainer compile the model: there are fewer, fused kernels, and no eager "
        "dispatch.",
        snippet='args = TrainingArguments("out", torch_compile=True)',
        needs=(Part.HF_TRAINER,),
        reference="https://huggingface.co/docs/transformers/main_classes/trainer",
    ),
    Remedy(
        text="Compile the module before you pass it to the Trainer: there are fewer, fused "
        "kernels, and no eager dispatch.",
        snippet="trainer.fit(torch.compile(module), datamodule)",
        needs=(Part.LIGHTNING,),
        reference="https://lightning.ai/docs/pytorch/stable/advanced/compile.html",
    ),
    Remedy(
        text="Let DeepSpeed compile the model: there are fewer, fused kernels, and no eager "
        "dispatch.",
        snippet="engine, optimizer, _, _ = deepspeed.initialize(model=model, config=config)\n"
        "engine.compile()",
        needs=(Part.DEEPSPEED,),
        reference="https://deepspeed.readthedocs.io/en/latest/training.html",
    ),
    Remedy(
        text="Let torchtitan compile the model's blocks and the loss.",
        snippet="./run_train.sh --compile.enable",
        language="bash",
        needs=(Part.TORCHTITAN,),
        reference="https://github.com/pytorch/torchtitan/blob/main/torchtitan/config/configs.py",
    ),
    Remedy(
        text="Let Accelerate compile the model: there are fewer, fused kernels, and no eager "
        "dispatch.",
        snippet='accelerator = Accelerator(dynamo_backend="inductor")',
        needs=(Part.ACCELERATE,),
        reference="https://huggingface.co/docs/accelerate/usage_guides/compilation",
    ),
    Remedy(
        text="Compile the blocks that the model repeats: there are fewer, fused kernels, and no "
        "eager dispatch.",
        snippet="pipe.transformer.compile_repeated_blocks(fullgraph=True)  # or pipe.unet",
        needs=(Part.DIFFUSERS,),
        reference="https://huggingface.co/docs/diffusers/optimization/fp16",
    ),
    Remedy(
        text="Compile the pipeline's model: there are fewer, fused kernels, and no eager dispatch.",
        snippet="pipe.model = torch.compile(pipe.model)",
        needs=(Part.HF_PIPELINE,),
        reference="https://huggingface.co/docs/transformers/perf_torch_compile",
    ),
    Remedy(
        text="Compile the model: there are fewer, fused kernels, and no eager dispatch.",
        snippet="model = torch.compile(model)",
        unless=(*SERVERS, Part.MEGATRON),
        reference="https://docs.pytorch.org/docs/stable/generated/torch.compile.html",
    ),
    unless=(Part.TORCH_COMPILE, Part.DEVICE_GRAPHS, Part.XLA),
)
"""Compile the model with torch.compile."""

ONE_JIT = (
    "@jax.jit\n"
    "def train_step(state, batch):\n"
    "    loss, gradients = jax.value_and_grad(loss_fn)(state.params, batch)\n"
    "    return state.apply_gradients(grads=gradients), loss"
)
"""A JAX training step that is compiled as one program."""
