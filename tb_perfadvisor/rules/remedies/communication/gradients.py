"""Remedies for reducing the gradients of data-parallel ranks."""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from tb_perfadvisor.rules.finding import Remedy
from tb_perfadvisor.rules.remedies.compute import batch_size
from tb_perfadvisor.rules.remedies.variants import variants
from tb_perfadvisor.signals.workload.parts import Part

_DDP_DOCS: Final = (
    "https://pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html"
)
_MEGATRON_DOCS: Final = "https://docs.nvidia.com/megatron-core/developer-guide/latest/"
_XLA_DOCS: Final = "https://docs.jax.dev/en/latest/gpu_performance_tips.html"

FEWER_REDUCTIONS: Final = variants(
    "accumulation",
    Remedy(
        text="Reduce gradients once for several batches: accumulate them locally in between.",
        snippet="trainer = Trainer(accumulate_grad_batches=4)",
        needs=(Part.LIGHTNING,),
        reference="https://lightning.ai/docs/pytorch/stable/advanced/training_tricks.html",
    ),
    Remedy(
        text="Reduce gradients once for several batches: accumulate them locally in between.",
        snippet='args = TrainingArguments("out", gradient_accumulation_steps=4)',
        needs=(Part.HF_TRAINER,),
        reference="https://huggingface.co/docs/transformers/main_classes/trainer",
    ),
    Remedy(
        text="Reduce gradients once for several batches: accumulate them locally in between.",
        snippet=(
            "accelerator = Accelerator(gradient_accumulation_steps=4)\n"
            "with accelerator.accumulate(model):\n"
            "    accelerator.backward(loss_fn(model(batch)))"
        ),
        needs=(Part.ACCELERATE,),
        unless=(Part.FORWARD_ONLY, Part.SERVER),
        reference="https://huggingface.co/docs/accelerate/usage_guides/gradient_accumulation",
    ),
    Remedy(
        text="Reduce gradients once for several batches: accumulate them locally in between.",
        snippet='config["gradient_accumulation_steps"] = 4  # of DeepSpeed',
        needs=(Part.DEEPSPEED,),
        reference="https://www.deepspeed.ai/docs/config-json/",
    ),
    Remedy(
        text="Reduce gradients once for several batches: accumulate them, and skip the reduction "
        "in all batches but the last.",
        snippet=(
            "with model.no_sync():\n"
            "    for micro_batch in micro_batches[:-1]:\n"
            "        loss_fn(model(micro_batch)).backward()\n"
            "loss_fn(model(micro_batches[-1])).backward()\n"
            "optimizer.step()"
        ),
        needs=(Part.DDP,),
        unless=(Part.FORWARD_ONLY, Part.MEGATRON),
        reference=_DDP_DOCS,
    ),
    Remedy(
        text="If gradients are accumulated over several batches, reduce them after the last one "
        "only.",
    ),
)
_SAME_BYTES: Final = (
    "If memory allows, use a larger batch per device: the bytes to reduce stay the same, and there "
    "is more compute to hide them."
)
_OF_TRAINING: Final = (Part.HF_TRAINER, Part.DEEPSPEED, Part.MEGATRON, Part.TORCHTITAN, Part.LOADER)
LARGER_BATCH: Final = (
    *(
        replace(remedy, text=_SAME_BYTES, unless=(*remedy.unless, Part.FORWARD_ONLY))
        for remedy in batch_size.LARGER_BATCH
        if any(part in remedy.needs for part in _OF_TRAINING)
    ),
    *variants(
        "batch-size",
        Remedy(text=_SAME_BYTES, unless=(Part.FORWARD_ONLY, Part.SERVER)),
        Remedy(
            text=_SAME_BYTES,
            snippet="global_batch = 2 * batch_per_device * jax.device_count()",
            framework="jax",
            reference="https://docs.jax.dev/en/latest/sharded-computation.html",
        ),
        Remedy(
            text=_SAME_BYTES,
            snippet="global_batch = 2 * batch_per_replica * strategy.num_replicas_in_sync",
            framework="tensorflow",
            reference="https://www.tensorflow.org/guide/distributed_training",
        ),
    ),
)
"""Like the larger batches of other rules, for another reason."""
OVERLAP_GRADIENTS: Final = variants(
    "ddp-options",
    Remedy(
        text="Reduce gradients while the backward pass runs.",
        snippet="pretrain_gpt.py --overlap-grad-reduce --overlap-param-gather",
        language="bash",
        needs=(Part.MEGATRON,),
        reference=_MEGATRON_DOCS,
    ),
    Remedy(
        text="Reduce gradients while the backward pass runs.",
        snippet='config["zero_optimization"]["overlap_comm"] = True  # of DeepSpeed',
        needs=(Part.DEEPSPEED,),
        reference="https://www.deepspeed.ai/docs/config-json/",
    ),
    Remedy(
        text="Tell DDP that the graph does not change: it then orders the buckets as the backward "
        "pass fills them, and sends each at once.",
        snippet=(
            "strategy = DDPStrategy(static_graph=True, gradient_as_bucket_view=True)\n"
            "trainer = Trainer(strategy=strategy)"
        ),
        needs=(Part.LIGHTNING, Part.DDP),
        reference="https://lightning.ai/docs/pytorch/stable/advanced/ddp_optimizations.html",
    ),
    Remedy(
        text="Tell DDP that every parameter is used: it then need not search the graph for unused "
        "ones in each step.",
        snippet='args = TrainingArguments("out", ddp_find_unused_parameters=False)',
        needs=(Part.HF_TRAINER, Part.DDP),
        reference="https://huggingface.co/docs/transformers/main_classes/trainer",
    ),
    Remedy(
        text="Tell DDP that the graph does not change: it then orders the buckets as the backward "
        "pass fills them, and sends each at once.",
        snippet=(
            "model = DistributedDataParallel(\n"
            "    model, static_graph=True, gradient_as_bucket_view=True\n"
            ")"
        ),
        needs=(Part.DDP,),
        reference=_DDP_DOCS,
    ),
)
LARGER_BUCKETS: Final = Remedy(
    text="Use larger buckets. The gradients still fill several of them, so all but the last "
    "can overlap with the backward pass.",
    snippet="model = DistributedDataParallel(model, bucket_cap_mb=100)",
    framework="pytorch",
    needs=(Part.DDP,),
    unless=(Part.MEGATRON, Part.DEEPSPEED),
    change="bucket-size",
    reference="https://pytorch.org/docs/stable/notes/ddp.html",
)
MANY_BYTES: Final = 400 * 2**20
"""From here on, buckets of 100 MB are four or more, of which all but the last can overlap."""
LARGE_BUCKET: Final = 50 * 2**20
"""Messages of this size are large enough: twice DDP's default."""
_SMALLER: Final = (
    "Use smaller buckets, so that less is left to send when the backward pass ends. The bucket "
    "with the gradients of the first layers is sent last."
)
SMALLER_BUCKETS: Final = variants(
    "bucket-size",
    Remedy(
        text=_SMALLER,
        snippet="pretrain_gpt.py --overlap-grad-reduce --ddp-bucket-size 10000000",
        language="bash",
        needs=(Part.MEGATRON,),
        reference=_MEGATRON_DOCS,
    ),
    Remedy(
        text=_SMALLER,
        snippet='config["zero_optimization"]["reduce_bucket_size"] = 10_000_000  # of DeepSpeed',
        needs=(Part.DEEPSPEED,),
        reference="https://www.deepspeed.ai/docs/config-json/",
    ),
    Remedy(
        text=_SMALLER,
        snippet="strategy = DDPStrategy(bucket_cap_mb=10)\ntrainer = Trainer(strategy=strategy)",
        needs=(Part.LIGHTNING, Part.DDP),
        reference="https://lightning.ai/docs/pytorch/stable/advanced/ddp_optimizations.html",
    ),
    Remedy(
        text=_SMALLER,
        snippet='args = TrainingArguments("out", ddp_bucket_cap_mb=10)',
        needs=(Part.HF_TRAINER, Part.DDP),
        reference="https://huggingface.co/docs/transformers/main_classes/trainer",
    ),
    Remedy(
        text=_SMALLER,
        snippet="model = DistributedDataParallel(model, bucket_cap_mb=10)",
        needs=(Part.DDP,),
        reference="https://pytorch.org/docs/stable/notes/ddp.html",
    ),
)
WITH_BUCKETS: Final = (Part.DDP, Part.DEEPSPEED, Part.MEGATRON)
"""Parts that send gradients in buckets."""
ASYNC_COLLECTIVE: Final = Remedy(
    text="If the program calls the collectives itself, start them early, and wait only where the "
    "result is needed.",
    snippet=(
        "work = torch.distributed.all_reduce(tensor, async_op=True)\n"
        "compute_what_needs_no_result()\n"
        "work.wait()"
    ),
    framework="pytorch",
    change="async-collective",
    reference="https://pytorch.org/docs/stable/distributed.html#synchronous-and-asynchronous-"
    "collective-operations",
)
XLA_OVERLAP: Final = Remedy(
    text="Let XLA's latency-hiding scheduler overlap collectives with compute.",
    snippet='os.environ["XLA_FLAGS"] = "--xla_gpu_enable_latency_hiding_scheduler=true"',
    framework="jax",
    needs=(Part.GPU,),
    change="xla-overlap",
    reference=_XLA_DOCS,
)
TF_NCCL: Final = Remedy(
    text="Use NCCL for the all-reduce across GPUs, and pack the gradients.",
    snippet=(
        "strategy = tf.distribute.MirroredStrategy(\n"
        "    cross_device_ops=tf.distribute.NcclAllReduce(num_packs=1)\n"
        ")"
    ),
    framework="tensorflow",
    needs=(Part.GPU,),
    change="all-reduce-library",
    reference="https://www.tensorflow.org/guide/distributed_training",
)
_NO_BROADCAST: Final = (
    "Do not broadcast the buffers in every forward pass. If they are BatchNorm's running "
    "statistics, broadcast them once before each evaluation or checkpoint."
)
NO_BUFFER_BROADCAST: Final = variants(
    "buffer-broadcast",
    Remedy(
        text=_NO_BROADCAST,
        snippet=(
            "strategy = DDPStrategy(broadcast_buffers=False)\ntrainer = Trainer(strategy=strategy)"
        ),
        needs=(Part.LIGHTNING, Part.DDP),
        reference=_DDP_DOCS,
    ),
    Remedy(
        text=_NO_BROADCAST,
        snippet='args = TrainingArguments("out", ddp_broadcast_buffers=False)',
        needs=(Part.HF_TRAINER, Part.DDP),
        reference="https://huggingface.co/docs/transformers/main_classes/trainer",
    ),
    Remedy(
        text=_NO_BROADCAST,
        snippet=(
            "model = DistributedDataParallel(model, broadcast_buffers=False)\n"
            "# PyTorch 2.13 and later: forward_sync_buffers=False"
        ),
        needs=(Part.DDP,),
        reference=_DDP_DOCS,
    ),
)
