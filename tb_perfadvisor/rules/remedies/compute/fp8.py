"""Remedies that multiply in fp8."""

from __future__ import annotations

from tb_perfadvisor.rules.finding import Remedy
from tb_perfadvisor.rules.remedies.variants import variants
from tb_perfadvisor.signals.workload.parts import OWN_THE_LOOP, TRAINERS, Part

_TORCHAO_TRAINING = "https://docs.pytorch.org/ao/stable/workflows/training.html"
_TORCHAO_INFERENCE = "https://docs.pytorch.org/ao/stable/workflows/inference.html"
_TRANSFORMER_ENGINE = "https://docs.nvidia.com/deeplearning/transformer-engine/user-guide/"

FP8_TRAINING = variants(
    "fp8",
    Remedy(
        text="Let Megatron compute in fp8 with Transformer Engine. Compare the loss curves.",
        snippet="torchrun pretrain_gpt.py --fp8-format hybrid",
        language="bash",
        needs=(Part.MEGATRON, Part.TRAINING),
        reference="https://docs.nvidia.com/megatron-core/",
    ),
    Remedy(
        text="Let torchtitan convert the linear layers to fp8. Compare the loss curves.",
        snippet="from torchtitan.components.quantization import Float8LinearConverter\n"
        "converters = [Float8LinearConverter.Config(filter_fqns=['lm_head'])]\n"
        'model_spec = model_registry("8B", converters=converters)',
        needs=(Part.TORCHTITAN, Part.TRAINING),
        reference="https://github.com/pytorch/torchtitan/blob/main/torchtitan/models/llama3/config_registry.py",
    ),
    Remedy(
        text="Start the training with fp8, which Accelerate runs with torchao or Transformer "
        "Engine. Compare the loss curves.",
        snippet="accelerate launch --mixed_precision fp8 train.py",
        language="bash",
        needs=(Part.HF_TRAINER, Part.TRAINING),
        reference="https://huggingface.co/docs/accelerate/usage_guides/low_precision_training",
    ),
    Remedy(
        text="Let Accelerate compute in fp8 with torchao. Compare the loss curves.",
        snippet="from accelerate.utils import AORecipeKwargs\n"
        'accelerator = Accelerator(mixed_precision="fp8", kwargs_handlers=[AORecipeKwargs()])',
        needs=(Part.ACCELERATE, Part.TRAINING),
        reference="https://huggingface.co/docs/accelerate/usage_guides/low_precision_training",
    ),
    Remedy(
        text="Let Lightning compute in fp8 with Transformer Engine. Compare the loss curves.",
        snippet='trainer = L.Trainer(precision="transformer-engine")  # of the package lightning',
        needs=(Part.LIGHTNING, Part.TRAINING),
        reference="https://lightning.ai/docs/pytorch/stable/common/precision_intermediate.html",
    ),
    Remedy(
        text="Convert the large linear layers to fp8 with torchao, before the model is compiled: "
        "the compiler fuses the casts. Leave out the last layer. Compare the loss curves. "
        "Transformer Engine does the same with its own layers.",
        snippet="from torchao.float8 import convert_to_float8_training\n"
        "convert_to_float8_training(\n"
        '    model, module_filter_fn=lambda module, name: not name.endswith("lm_head")\n'
        ")",
        needs=(Part.TRAINING,),
        unless=TRAINERS,
        reference=_TORCHAO_TRAINING,
    ),
)
"""Multiply in fp8 in training."""

FP8_INFERENCE = variants(
    "fp8",
    Remedy(
        text="Let vLLM quantize weights and activations to fp8, or load a checkpoint in fp8. Check "
        "the accuracy.",
        snippet="vllm serve MODEL --quantization fp8",
        language="bash",
        needs=(Part.VLLM,),
        reference="https://docs.vllm.ai/en/stable/features/quantization/fp8/",
    ),
    Remedy(
        text="Let SGLang quantize weights and activations to fp8, or load a checkpoint in fp8. "
        "Check the accuracy.",
        snippet="python -m sglang.launch_server --model-path MODEL --quantization fp8",
        language="bash",
        needs=(Part.SGLANG,),
        reference="https://docs.sglang.io/advanced_features/quantization.html",
    ),
    Remedy(
        text="Let TensorRT-LLM quantize weights and activations to fp8, or load a checkpoint in "
        "fp8. Check the accuracy.",
        snippet="from tensorrt_llm.llmapi import QuantAlgo, QuantConfig\n"
        "llm = LLM(model=name, quant_config=QuantConfig(quant_algo=QuantAlgo.FP8))",
        needs=(Part.TENSORRT_LLM,),
        reference="https://nvidia.github.io/TensorRT-LLM/features/quantization.html",
    ),
    Remedy(
        text="Quantize the transformer's linear layers to fp8 with torchao, before it is compiled: "
        "the compiler fuses the casts. Compare the images.",
        snippet="from torchao.quantization import Float8DynamicActivationFloat8WeightConfig\n"
        "from torchao.quantization import quantize_\n"
        "quantize_(pipe.transformer, Float8DynamicActivationFloat8WeightConfig())",
        needs=(Part.DIFFUSERS,),
        reference="https://huggingface.co/docs/diffusers/quantization/torchao",
    ),
    Remedy(
        text="Quantize the linear layers to fp8 with torchao, before the model is compiled: the "
        "compiler fuses the casts. Check the accuracy.",
        snippet="from torchao.quantization import Float8DynamicActivationFloat8WeightConfig\n"
        "from torchao.quantization import quantize_\n"
        "quantize_(model, Float8DynamicActivationFloat8WeightConfig())",
        needs=(Part.FORWARD_ONLY,),
        unless=OWN_THE_LOOP,
        reference=_TORCHAO_INFERENCE,
    ),
)
"""Multiply in fp8 in inference."""

FP8 = (
    *FP8_TRAINING,
    *FP8_INFERENCE,
    *variants(
        "fp8",
        Remedy(
            text="If the accuracy allows it, multiply the largest matrices in fp8: with torchao's "
            "convert_to_float8_training or Transformer Engine in training, with quantize_ or a "
            "checkpoint in fp8 in inference.",
            reference=_TORCHAO_TRAINING,
        ),
    ),
    Remedy(
        text="If the accuracy allows it, scale both operands of the largest products, cast them to "
        "fp8, and multiply these. Transformer Engine does so for JAX, with scales that it keeps "
        "from step to step.",
        snippet="def fp8_dot(x, w):\n"
        "    scale_x, scale_w = 448 / jnp.abs(x).max(), 448 / jnp.abs(w).max()\n"
        "    x8 = (x * scale_x).astype(jnp.float8_e4m3fn)\n"
        "    w8 = (w * scale_w).astype(jnp.float8_e4m3fn)\n"
        "    product = jax.lax.dot(x8, w8, preferred_element_type=jnp.float32)\n"
        "    return (product / (scale_x * scale_w)).astype(x.dtype)",
        framework="jax",
        change="fp8",
        reference=_TRANSFORMER_ENGINE,
    ),
    Remedy(
        text="If the accuracy allows it, multiply the largest matrices in fp8. Keras 3 does so in "
        "layers that are quantized to it, with its JAX and TensorFlow backends.",
        snippet='model.quantize("float8")',
        framework="tensorflow",
        change="fp8",
        reference="https://keras.io/guides/quantization_overview/",
    ),
)
"""Multiply in fp8 in any program."""
