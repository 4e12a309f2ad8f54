"""Remedies that give each step more work."""

from __future__ import annotations

from tb_perfadvisor.rules.finding import Remedy
from tb_perfadvisor.rules.remedies.variants import variants
from tb_perfadvisor.signals.workload.parts import SERVERS, Part

_TRAINING_NOTE = (
    "Double the batch as long as the time per sample falls: a larger batch needs the same number "
    "of launches. Scale the learning rate with it, and check that the model still converges."
)

LARGER_BATCH = variants(
    "batch-size",
    Remedy(
        text="Let vLLM run more requests in each step, if more are waiting.",
        snippet="llm = LLM(model=name, max_num_seqs=512)  # or vllm serve NAME --max-num-seqs 512",
        needs=(Part.VLLM,),
        reference="https://docs.vllm.ai/en/stable/configuration/optimization/",
    ),
    Remedy(
        text="Let SGLang run more requests in each step, if more are waiting.",
        snippet="python -m sglang.launch_server --model-path MODEL --max-running-requests 256",
        language="bash",
        needs=(Part.SGLANG,),
        reference="https://github.com/sgl-project/sglang/blob/main/python/sglang/srt/server_args.py",
    ),
    Remedy(
        text="Let TensorRT-LLM run more requests in each step, if more are waiting.",
        snippet="llm = LLM(model=name, max_batch_size=256)",
        needs=(Part.TENSORRT_LLM,),
        reference="https://nvidia.github.io/TensorRT-LLM/llm-api/reference.html",
    ),
    Remedy(
        text=_TRAINING_NOTE,
        snippet='args = TrainingArguments("out", per_device_train_batch_size=16)',
        needs=(Part.HF_TRAINER,),
        reference="https://huggingface.co/docs/transformers/main_classes/trainer",
    ),
    Remedy(
        text=_TRAINING_NOTE,
        snippet='config["train_micro_batch_size_per_gpu"] *= 2',
        needs=(Part.DEEPSPEED, Part.TRAINING),
        reference="https://www.deepspeed.ai/docs/config-json/",
    ),
    Remedy(
        text=_TRAINING_NOTE,
        snippet="torchrun pretrain_gpt.py --micro-batch-size 2",
        language="bash",
        needs=(Part.MEGATRON, Part.TRAINING),
        reference="https://docs.nvidia.com/megatron-core/developer-guide/latest/",
    ),
    Remedy(
        text=_TRAINING_NOTE,
        snippet="./run_train.sh --training.local_batch_size 16",
        language="bash",
        needs=(Part.TORCHTITAN,),
        reference="https://github.com/pytorch/torchtitan/blob/main/torchtitan/config/configs.py",
    ),
    Remedy(
        text="Pass several inputs at once: the pipeline then runs them as one batch.",
        snippet="for result in pipe(inputs, batch_size=16):\n    use(result)",
        needs=(Part.HF_PIPELINE,),
        reference="https://huggingface.co/docs/transformers/pipeline_tutorial",
    ),
    Remedy(
        text="Generate several images in one call, if more are needed: each denoising step then "
        "runs them as one batch.",
        snippet="images = pipe(prompts, num_images_per_prompt=2).images",
        needs=(Part.DIFFUSERS,),
        reference="https://huggingface.co/docs/diffusers/using-diffusers/batched_inference",
    ),
    Remedy(
        text=_TRAINING_NOTE,
        snippet="loader = torch.utils.data.DataLoader(dataset, batch_size=2 * batch_size)",
        needs=(Part.LOADER, Part.TRAINING),
        reference="https://docs.pytorch.org/docs/stable/data.html",
    ),
    Remedy(
        text="If more inputs are waiting, run several in one call: a larger batch needs the same "
        "number of launches.",
        needs=(Part.FORWARD_ONLY,),
        unless=SERVERS,
    ),
    Remedy(
        text="If memory allows, give each step a larger batch: it needs the same number of "
        "launches.",
        unless=SERVERS,
    ),
)
"""Run larger batches."""
