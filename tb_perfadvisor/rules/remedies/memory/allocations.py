"""Remedies for the device's memory."""

from __future__ import annotations

from tb_perfadvisor.rules.finding import Remedy
from tb_perfadvisor.rules.remedies.variants import variants
from tb_perfadvisor.signals.workload.parts import OWN_THE_LOOP, SERVERS, Part

_CHECKPOINT = "https://docs.pytorch.org/docs/stable/checkpoint.html"
_ALLOCATOR = (
    "https://docs.pytorch.org/docs/stable/notes/cuda.html"
    "#optimizing-memory-usage-with-pytorch-alloc-conf"
)

EXPANDABLE_SEGMENTS = Remedy(
    text="Let the allocator grow its segments in place, so that free pieces are joined. Before "
    "PyTorch 2.9, the variable is called PYTORCH_CUDA_ALLOC_CONF.",
    snippet="export PYTORCH_ALLOC_CONF=expandable_segments:True",
    language="bash",
    framework="pytorch",
    needs=(Part.NVIDIA,),
    change="expandable-segments",
    reference=_ALLOCATOR,
)
"""Let the allocator grow its segments, on devices where it can."""

EXPANDABLE_IF_NVIDIA = Remedy(
    text="On NVIDIA GPUs, let the allocator grow its segments in place, so that free pieces are "
    "joined. Before PyTorch 2.9, the variable is called PYTORCH_CUDA_ALLOC_CONF.",
    snippet="export PYTORCH_ALLOC_CONF=expandable_segments:True",
    language="bash",
    framework="pytorch",
    needs=(Part.GPU,),
    unless=(Part.AMD,),
    change="expandable-segments",
    reference=_ALLOCATOR,
)
"""The same, where the vendor is unknown: a memory snapshot does not name it."""

KEEP_CACHE = Remedy(
    text="Let the allocator keep freed memory: remove torch.cuda.empty_cache() from the loop.",
    framework="pytorch",
    needs=(Part.GPU,),
    reference="https://docs.pytorch.org/docs/stable/notes/cuda.html#memory-management",
)
"""Don't empty the cache in the loop."""

REPEATED_SIZES = Remedy(
    text="If sizes vary from step to step, make them repeat: pad inputs to a few lengths, so that "
    "a block freed by one step fits a request of the next.",
    snippet="length = 64 * math.ceil(max(map(len, batch)) / 64)",
    framework="pytorch",
    unless=SERVERS,
    change="repeated-sizes",
    reference=_ALLOCATOR,
)
"""Make the sizes of allocations repeat."""

CHECKPOINTING = variants(
    "activation-checkpointing",
    Remedy(
        text="Let the Trainer recompute activations in the backward pass instead of keeping them.",
        snippet='args = TrainingArguments("out", gradient_checkpointing=True)',
        needs=(Part.HF_TRAINER,),
        reference="https://huggingface.co/docs/transformers/main_classes/trainer",
    ),
    Remedy(
        text="Let Megatron recompute attention in the backward pass instead of keeping its "
        "activations.",
        snippet="torchrun pretrain_gpt.py --recompute-granularity selective",
        language="bash",
        needs=(Part.MEGATRON, Part.TRAINING),
        reference="https://github.com/NVIDIA/Megatron-LM/blob/main/megatron/training/arguments.py",
    ),
    Remedy(
        text="Let torchtitan recompute activations in the backward pass instead of keeping them.",
        snippet="./run_train.sh activation_checkpoint:selective",
        language="bash",
        needs=(Part.TORCHTITAN,),
        reference="https://github.com/pytorch/torchtitan/blob/main/torchtitan/distributed/"
        "activation_checkpoint.py",
    ),
    Remedy(
        text="Recompute activations in the backward pass instead of keeping them.",
        snippet="from torch.utils.checkpoint import checkpoint\n"
        "x = checkpoint(block, x, use_reentrant=False)",
        needs=(Part.TRAINING,),
        unless=(Part.TORCHTITAN, Part.MEGATRON),
        reference=_CHECKPOINT,
    ),
    unless=(Part.CHECKPOINTING,),
)
"""Recompute activations instead of keeping them."""

LESS_MEMORY = variants(
    "memory-limit",
    Remedy(
        text="vLLM fills the memory that it is given with its cache. If requests are preempted, "
        "give it more, or admit fewer requests at a time.",
        snippet="vllm serve MODEL --gpu-memory-utilization 0.92 --max-num-seqs 128",
        language="bash",
        needs=(Part.VLLM,),
        reference="https://docs.vllm.ai/en/stable/configuration/conserving_memory/",
    ),
    Remedy(
        text="SGLang fills the memory that it is given with its cache. If requests are retracted, "
        "give it more, or admit fewer requests at a time.",
        snippet="python -m sglang.launch_server --model-path MODEL \\\n"
        "    --mem-fraction-static 0.9 --max-running-requests 128",
        language="bash",
        needs=(Part.SGLANG,),
        reference="https://github.com/sgl-project/sglang/blob/main/python/sglang/srt/"
        "server_args.py",
    ),
    Remedy(
        text="TensorRT-LLM gives a share of the free memory to its cache. Leave it less, or admit "
        "fewer requests at a time.",
        snippet="trtllm-serve MODEL --kv_cache_free_gpu_memory_fraction 0.8 --max_batch_size 128",
        language="bash",
        needs=(Part.TENSORRT_LLM,),
        reference="https://nvidia.github.io/TensorRT-LLM/commands/trtllm-serve/trtllm-serve.html",
    ),
    Remedy(
        text="Move parts of the pipeline to the device only while they run.",
        snippet="pipe.enable_model_cpu_offload()  # of diffusers",
        needs=(Part.DIFFUSERS,),
        reference="https://huggingface.co/docs/diffusers/optimization/memory",
    ),
    Remedy(
        text="If the program computes no gradients, run it in inference mode, which keeps no "
        "activations, with smaller batches or fewer bits.",
        snippet="with torch.inference_mode():\n    output = model(inputs)",
        needs=(Part.FORWARD_ONLY,),
        unless=(*SERVERS, Part.DIFFUSERS),
        reference="https://docs.pytorch.org/docs/stable/generated/torch.autograd.grad_mode."
        "inference_mode.html",
    ),
    Remedy(
        text="If memory runs out, use a smaller batch, or keep weights and activations in fewer "
        "bits.",
        unless=SERVERS,
        reference="https://docs.pytorch.org/docs/stable/torch_cuda_memory.html",
    ),
)
"""Use less memory without recomputing anything."""

SHARD_STATE = variants(
    "sharding",
    Remedy(
        text="Let the Trainer shard parameters, gradients and optimizer state across the ranks.",
        snippet='args = TrainingArguments("out", fsdp="full_shard")',
        needs=(Part.HF_TRAINER,),
        reference="https://huggingface.co/docs/transformers/fsdp",
    ),
    Remedy(
        text="Let Lightning shard parameters, gradients and optimizer state across the ranks.",
        snippet='trainer = L.Trainer(strategy="fsdp")  # of the package lightning',
        needs=(Part.LIGHTNING,),
        reference="https://lightning.ai/docs/pytorch/stable/advanced/model_parallel/fsdp.html",
    ),
    Remedy(
        text="Let DeepSpeed shard optimizer state and gradients, or with stage 3 parameters, too.",
        snippet='config["zero_optimization"] = {"stage": 2}',
        needs=(Part.DEEPSPEED,),
        reference="https://www.deepspeed.ai/docs/config-json/",
    ),
    Remedy(
        text="Let Megatron shard the optimizer state across the ranks.",
        snippet="torchrun pretrain_gpt.py --use-distributed-optimizer",
        language="bash",
        needs=(Part.MEGATRON, Part.TRAINING),
        reference="https://github.com/NVIDIA/Megatron-LM/blob/main/megatron/training/arguments.py",
    ),
    Remedy(
        text="Let torchtitan shard parameters, gradients and optimizer state across the ranks.",
        snippet="./run_train.sh --parallelism.data_parallel_replicate_degree 1 \\\n"
        "    --parallelism.data_parallel_shard_degree -1",
        language="bash",
        needs=(Part.TORCHTITAN,),
        reference="https://github.com/pytorch/torchtitan/blob/main/torchtitan/config/configs.py",
    ),
    Remedy(
        text="Let Accelerate shard parameters, gradients and optimizer state across the ranks.",
        snippet="from accelerate import FullyShardedDataParallelPlugin\n"
        "plugin = FullyShardedDataParallelPlugin(fsdp_version=2)\n"
        "accelerator = Accelerator(fsdp_plugin=plugin)",
        needs=(Part.ACCELERATE,),
        reference="https://huggingface.co/docs/accelerate/usage_guides/fsdp",
    ),
    Remedy(
        text="Shard parameters, gradients and optimizer state across the ranks.",
        snippet="from torch.distributed.fsdp import fully_shard\n"
        "for layer in model.layers:\n"
        "    fully_shard(layer)\n"
        "fully_shard(model)\n"
        "optimizer = torch.optim.AdamW(model.parameters())  # after sharding",
        needs=(Part.TRAINING,),
        unless=OWN_THE_LOOP,
        reference="https://docs.pytorch.org/tutorials/intermediate/FSDP_tutorial.html",
    ),
    Remedy(
        text="If all ranks hold the same parameters, gradients and optimizer state, shard them "
        "across the ranks.",
        reference="https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html",
    ),
)
"""Hold each part of the model's state on one rank only."""
