"""Remedies that compute in 16 bits with PyTorch."""

from __future__ import annotations

from msgspec.structs import replace

from tb_perfadvisor.rules.finding import Remedy
from tb_perfadvisor.rules.remedies.variants import variants
from tb_perfadvisor.signals.workload.parts import SERVERS, Part

_AMP = "https://docs.pytorch.org/docs/stable/amp.html"
_TRAINER = "https://huggingface.co/docs/transformers/main_classes/trainer"
_LIGHTNING = "https://lightning.ai/docs/pytorch/stable/common/precision_basic.html"
_ACCELERATE = "https://huggingface.co/docs/accelerate/package_reference/accelerator"
_DEEPSPEED = "https://www.deepspeed.ai/docs/config-json/"
_MEGATRON = "https://github.com/NVIDIA/Megatron-LM/blob/main/megatron/training/arguments.py"
_SGLANG = "https://github.com/sgl-project/sglang/blob/main/python/sglang/srt/server_args.py"
_TENSORRT_LLM = "https://nvidia.github.io/TensorRT-LLM/llm-api/reference.html"
_VLLM = "https://docs.vllm.ai/en/stable/configuration/engine_args/"
_PIPELINE = "https://huggingface.co/docs/transformers/main_classes/pipelines"
_DIFFUSERS = "https://huggingface.co/docs/diffusers/optimization/fp16"

_IN_TRAINING = variants(
    "bfloat16",
    Remedy(
        text="Let the Trainer compute in bfloat16.",
        snippet='args = TrainingArguments("out", bf16=True)',
        needs=(Part.HF_TRAINER,),
        reference=_TRAINER,
    ),
    Remedy(
        text="Let Lightning compute in bfloat16.",
        snippet='trainer = L.Trainer(precision="bf16-mixed")  # of the package lightning',
        needs=(Part.LIGHTNING,),
        reference=_LIGHTNING,
    ),
    Remedy(
        text="Let DeepSpeed compute in bfloat16.",
        snippet='config["bf16"] = {"enabled": True}',
        needs=(Part.DEEPSPEED,),
        reference=_DEEPSPEED,
    ),
    Remedy(
        text="Let Megatron compute in bfloat16.",
        snippet="torchrun pretrain_gpt.py --bf16",
        language="bash",
        needs=(Part.MEGATRON,),
        reference=_MEGATRON,
    ),
    Remedy(
        text="Let torchtitan compute in bfloat16.",
        snippet="./run_train.sh --training.mixed_precision_param bfloat16",
        language="bash",
        needs=(Part.TORCHTITAN,),
        reference="https://github.com/pytorch/torchtitan/blob/main/torchtitan/config/configs.py",
    ),
    Remedy(
        text="Let Accelerate compute in bfloat16.",
        snippet='accelerator = Accelerator(mixed_precision="bf16")',
        needs=(Part.ACCELERATE,),
        reference=_ACCELERATE,
    ),
    Remedy(
        text="Run the forward pass and the loss in bfloat16 under autocast.",
        snippet="with torch.autocast(device.type, dtype=torch.bfloat16):\n"
        "    loss = loss_fn(model(inputs), targets)\n"
        "loss.backward()",
        needs=(Part.TRAINING,),
        reference=_AMP,
    ),
)
BFLOAT16_WEIGHTS = variants(
    "bfloat16",
    Remedy(
        text="Let vLLM compute in bfloat16, unless the model needs 32 bits.",
        snippet='llm = LLM(model=name, dtype="bfloat16")  # or vllm serve NAME --dtype bfloat16',
        needs=(Part.VLLM,),
        reference=_VLLM,
    ),
    Remedy(
        text="Let SGLang compute in bfloat16, unless the model needs 32 bits.",
        snippet="python -m sglang.launch_server --model-path MODEL --dtype bfloat16",
        language="bash",
        needs=(Part.SGLANG,),
        reference=_SGLANG,
    ),
    Remedy(
        text="Let TensorRT-LLM compute in bfloat16, unless the model needs 32 bits.",
        snippet='llm = LLM(model=name, dtype="bfloat16")',
        needs=(Part.TENSORRT_LLM,),
        reference=_TENSORRT_LLM,
    ),
    Remedy(
        text="Load the pipeline in bfloat16.",
        snippet="pipe = DiffusionPipeline.from_pretrained(  # of diffusers\n"
        "    name, torch_dtype=torch.bfloat16\n"
        ")",
        needs=(Part.DIFFUSERS,),
        reference=_DIFFUSERS,
    ),
    Remedy(
        text="Load the pipeline's model in bfloat16. Before Transformers 5, the argument is called "
        "torch_dtype.",
        snippet="pipe = pipeline(task, model=name, dtype=torch.bfloat16)",
        needs=(Part.HF_PIPELINE,),
        reference=_PIPELINE,
    ),
    Remedy(
        text="Load the model in bfloat16. Before Transformers 5, the argument is called "
        "torch_dtype.",
        snippet="model = AutoModel.from_pretrained(name, dtype=torch.bfloat16)",
        needs=(Part.TRANSFORMERS, Part.FORWARD_ONLY),
        reference="https://huggingface.co/docs/transformers/main_classes/model",
    ),
    Remedy(
        text="Keep the weights in bfloat16, and compute in it.",
        snippet="model = model.to(torch.bfloat16).eval()\n"
        "output = model(inputs.to(torch.bfloat16))",
        needs=(Part.FORWARD_ONLY,),
        unless=SERVERS,
        reference=_AMP,
    ),
)
"""Keep the weights in bfloat16, in inference."""

BFLOAT16 = (
    *_IN_TRAINING,
    *BFLOAT16_WEIGHTS,
    *variants(
        "bfloat16",
        Remedy(
            text="If the results allow it, run the forward pass in bfloat16 under autocast.",
            snippet="with torch.autocast(device.type, dtype=torch.bfloat16):\n"
            "    output = model(inputs)",
            unless=SERVERS,
            reference=_AMP,
        ),
    ),
)
"""Compute in bfloat16."""

NO_LOSS_SCALING = (
    *(
        replace(remedy, text="Compute in bfloat16, which needs no loss scaling.")
        for remedy in _IN_TRAINING
    ),
    *variants(
        "bfloat16",
        Remedy(
            text="If the program scales the loss, compute in bfloat16, which needs no scaling.",
            reference=_AMP,
        ),
    ),
)
"""Compute in bfloat16 instead of scaling the loss, as float16 needs it."""

_SCALED = "Compute in float16, with loss scaling: this device has no bfloat16."
FLOAT16 = variants(
    "float16",
    Remedy(
        text=_SCALED,
        snippet='args = TrainingArguments("out", fp16=True)',
        needs=(Part.HF_TRAINER,),
        reference=_TRAINER,
    ),
    Remedy(
        text=_SCALED,
        snippet='trainer = L.Trainer(precision="16-mixed")  # of the package lightning',
        needs=(Part.LIGHTNING,),
        reference=_LIGHTNING,
    ),
    Remedy(
        text=_SCALED,
        snippet='config["fp16"] = {"enabled": True}',
        needs=(Part.DEEPSPEED,),
        reference=_DEEPSPEED,
    ),
    Remedy(
        text=_SCALED,
        snippet="torchrun pretrain_gpt.py --fp16",
        language="bash",
        needs=(Part.MEGATRON,),
        reference=_MEGATRON,
    ),
    Remedy(
        text=_SCALED,
        snippet='accelerator = Accelerator(mixed_precision="fp16")',
        needs=(Part.ACCELERATE,),
        reference=_ACCELERATE,
    ),
    Remedy(
        text="Run the forward pass and the loss in float16 under autocast, with loss scaling: this "
        "device has no bfloat16.",
        snippet="scaler = torch.amp.GradScaler(device.type)\n"
        "with torch.autocast(device.type, dtype=torch.float16):\n"
        "    loss = loss_fn(model(inputs), targets)\n"
        "scaler.scale(loss).backward()\n"
        "scaler.step(optimizer)\n"
        "scaler.update()",
        needs=(Part.TRAINING,),
        reference=_AMP,
    ),
    Remedy(
        text="Let vLLM compute in float16: this device has no bfloat16.",
        snippet='llm = LLM(model=name, dtype="half")  # or vllm serve NAME --dtype half',
        needs=(Part.VLLM,),
        reference=_VLLM,
    ),
    Remedy(
        text="Let SGLang compute in float16: this device has no bfloat16.",
        snippet="python -m sglang.launch_server --model-path MODEL --dtype half",
        language="bash",
        needs=(Part.SGLANG,),
        reference=_SGLANG,
    ),
    Remedy(
        text="Let TensorRT-LLM compute in float16: this device has no bfloat16.",
        snippet='llm = LLM(model=name, dtype="float16")',
        needs=(Part.TENSORRT_LLM,),
        reference=_TENSORRT_LLM,
    ),
    Remedy(
        text="Load the pipeline in float16: this device has no bfloat16.",
        snippet="pipe = DiffusionPipeline.from_pretrained(  # of diffusers\n"
        "    name, torch_dtype=torch.float16\n"
        ")",
        needs=(Part.DIFFUSERS,),
        reference=_DIFFUSERS,
    ),
    Remedy(
        text="Load the pipeline's model in float16: this device has no bfloat16.",
        snippet="pipe = pipeline(task, model=name, dtype=torch.float16)",
        needs=(Part.HF_PIPELINE,),
        reference=_PIPELINE,
    ),
    Remedy(
        text="If the results allow it, keep the weights in float16, and compute in it: this device "
        "has no bfloat16.",
        snippet="model = model.to(torch.float16).eval()\noutput = model(inputs.to(torch.float16))",
        needs=(Part.FORWARD_ONLY,),
        unless=SERVERS,
        reference=_AMP,
    ),
    Remedy(
        text="If the results allow it, run the forward pass in float16 under autocast: this device "
        "has no bfloat16. In training, also scale the loss with torch.amp.GradScaler.",
        snippet="with torch.autocast(device.type, dtype=torch.float16):\n"
        "    output = model(inputs)",
        unless=(Part.SERVER, Part.FORWARD_ONLY),
        reference=_AMP,
    ),
)
"""Compute in float16, on devices without bfloat16."""
