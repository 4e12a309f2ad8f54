"""Remedies that let libraries run better kernels."""

from __future__ import annotations

from tb_perfadvisor.rules.finding import Remedy
from tb_perfadvisor.rules.remedies.variants import variants
from tb_perfadvisor.signals.workload.parts import SERVERS, Part

_TUNING = "https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html"
_TEXT = "Let the compiler try more kernels for these shapes, and choose tile sizes."

AUTOTUNE = variants(
    "autotune",
    Remedy(
        text=_TEXT,
        snippet="torch._inductor.config.max_autotune = True  # before the model is compiled",
        needs=(Part.TORCH_COMPILE,),
        unless=SERVERS,
        reference="https://docs.pytorch.org/docs/stable/generated/torch.compile.html",
    ),
    Remedy(
        text=_TEXT,
        snippet='args = TrainingArguments("out", torch_compile=True, '
        'torch_compile_mode="max-autotune")',
        needs=(Part.HF_TRAINER,),
        unless=(Part.TORCH_COMPILE, Part.DEVICE_GRAPHS),
        reference="https://huggingface.co/docs/transformers/main_classes/trainer",
    ),
    Remedy(
        text=_TEXT,
        snippet="from accelerate.utils import TorchDynamoPlugin\n"
        'plugin = TorchDynamoPlugin(backend="inductor", mode="max-autotune")\n'
        "accelerator = Accelerator(dynamo_plugin=plugin)",
        needs=(Part.ACCELERATE,),
        unless=(Part.TORCH_COMPILE, Part.DEVICE_GRAPHS),
        reference="https://huggingface.co/docs/accelerate/usage_guides/compilation",
    ),
    Remedy(
        text=_TEXT,
        snippet='pipe.transformer = torch.compile(pipe.transformer, mode="max-autotune")',
        needs=(Part.DIFFUSERS,),
        unless=(Part.TORCH_COMPILE, Part.DEVICE_GRAPHS),
        reference="https://huggingface.co/docs/diffusers/optimization/fp16",
    ),
    Remedy(
        text=_TEXT,
        snippet='pipe.model = torch.compile(pipe.model, mode="max-autotune")',
        needs=(Part.HF_PIPELINE,),
        unless=(Part.TORCH_COMPILE, Part.DEVICE_GRAPHS),
        reference="https://huggingface.co/docs/transformers/perf_torch_compile",
    ),
    Remedy(
        text=_TEXT,
        snippet='model = torch.compile(model, mode="max-autotune")',
        unless=(*SERVERS, Part.MEGATRON, Part.TORCHTITAN, Part.TORCH_COMPILE, Part.DEVICE_GRAPHS),
        reference="https://docs.pytorch.org/docs/stable/generated/torch.compile.html",
    ),
)
"""Let the compiler measure which kernels are fastest."""

LIBRARY_BENCHMARK = variants(
    "library-benchmark",
    Remedy(
        text="If convolutions keep their shapes, let the library measure which kernels are "
        "fastest.",
        snippet="trainer = L.Trainer(benchmark=True)  # of the package lightning",
        needs=(Part.LIGHTNING,),
        reference="https://lightning.ai/docs/pytorch/stable/common/trainer.html",
    ),
    Remedy(
        text="If convolutions keep their shapes, let the library measure which kernels are "
        "fastest.",
        snippet="torch.backends.cudnn.benchmark = True",
        unless=SERVERS,
        reference=_TUNING,
    ),
)
"""Let cuDNN or MIOpen measure which kernels are fastest."""

CHANNELS_LAST = variants(
    "channels-last",
    Remedy(
        text="Keep images and convolutions in the layout that the fast kernels use.",
        snippet="model = model.to(memory_format=torch.channels_last)\n"
        "images = images.to(memory_format=torch.channels_last)",
        reference="https://docs.pytorch.org/tutorials/intermediate/memory_format_tutorial.html",
    ),
)
"""Keep images with their channels last."""

MIOPEN_CHANNELS_LAST = Remedy(
    text="On AMD devices, also allow PyTorch to use MIOpen in that layout.",
    snippet="export PYTORCH_MIOPEN_SUGGEST_NHWC=1 PYTORCH_MIOPEN_SUGGEST_NHWC_BATCHNORM=1",
    language="bash",
    framework="pytorch",
    needs=(Part.AMD,),
    change="channels-last-miopen",
    reference="https://rocm.docs.amd.com/en/latest/how-to/rocm-for-ai/inference-optimization/"
    "model-acceleration-libraries.html",
)
"""Let MIOpen run channels-last convolutions."""

TF32 = variants(
    "tf32",
    Remedy(
        text="Where 32 bits are required, let matrix products and convolutions round their inputs "
        "to TF32.",
        snippet='args = TrainingArguments("out", tf32=True)',
        needs=(Part.HF_TRAINER,),
        reference="https://huggingface.co/docs/transformers/main_classes/trainer",
    ),
    Remedy(
        text="Where 32 bits are required, let matrix products and convolutions round their inputs "
        "to TF32, before the model runs.",
        snippet='torch.set_float32_matmul_precision("high")\n'
        "torch.backends.cudnn.allow_tf32 = True",
        reference="https://docs.pytorch.org/docs/stable/notes/cuda.html",
    ),
)
"""Multiply 32-bit numbers in TF32."""
