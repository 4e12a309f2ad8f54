"""Remedies for sharded parameters, pipelines, experts, embedding tables and long contexts."""

from __future__ import annotations

from typing import Final

from tb_perfadvisor.rules.finding import Remedy
from tb_perfadvisor.rules.remedies.variants import variants
from tb_perfadvisor.signals.workload.parts import SERVERS, Part

_FSDP_DOCS: Final = "https://pytorch.org/docs/stable/distributed.fsdp.fully_shard.html"
_MEGATRON_DOCS: Final = "https://docs.nvidia.com/megatron-core/developer-guide/latest/"
_VLLM_DOCS: Final = "https://docs.vllm.ai/en/stable/configuration/optimization/"
_SGLANG_DOCS: Final = "https://docs.sglang.ai/advanced_features/server_arguments.html"
_TENSORRT_LLM_DOCS = "https://nvidia.github.io/TensorRT-LLM/llm-api/reference.html"
_XLA_DOCS: Final = "https://docs.jax.dev/en/latest/gpu_performance_tips.html"

PREFETCH_SHARDS: Final = variants(
    "shard-prefetch",
    Remedy(
        text="Gather the parameters of the next layer while the current one computes.",
        snippet=(
            'config["zero_optimization"]["overlap_comm"] = True  # of DeepSpeed\n'
            'config["zero_optimization"]["stage3_prefetch_bucket_size"] = 500_000_000'
        ),
        needs=(Part.DEEPSPEED,),
        reference="https://www.deepspeed.ai/docs/config-json/",
    ),
    Remedy(
        text="Gather the parameters of the next layer while the current one computes.",
        snippet=(
            "for layer, following in itertools.pairwise(layers):\n"
            "    layer.set_modules_to_forward_prefetch([following])\n"
            "# FullyShardedDataParallel: forward_prefetch=True,\n"
            "#     backward_prefetch=BackwardPrefetch.BACKWARD_PRE, limit_all_gathers=True"
        ),
        needs=(Part.FSDP,),
        reference=_FSDP_DOCS,
    ),
    Remedy(
        text="Let XLA overlap the gathers of a layer's parameters with the previous layer.",
        snippet=(
            'os.environ["XLA_FLAGS"] = (\n'
            '    "--xla_gpu_enable_latency_hiding_scheduler=true "\n'
            '    "--xla_gpu_enable_pipelined_all_gather=true"\n'
            ")"
        ),
        framework="jax",
        needs=(Part.GPU,),
        reference=_XLA_DOCS,
    ),
    Remedy(
        text="If all parameters are gathered at once, or each layer's only when it is needed, "
        "gather them one layer ahead.",
        framework="jax",
        reference=_XLA_DOCS,
    ),
    Remedy(
        text="If the program gathers parameters itself, start each gather one layer ahead.",
        unless=(Part.SERVER,),
    ),
    Remedy(
        text="If memory allows, keep whole parameters on each device, or split the model by "
        "tensors: then no layer waits for its parameters.",
        needs=(Part.SERVER,),
    ),
)
KEEP_SHARDS: Final = Remedy(
    text="If memory allows, keep the gathered parameters for the backward pass, which saves the "
    "second all-gather.",
    snippet="fully_shard(layer, reshard_after_forward=False)  # SHARD_GRAD_OP before FSDP2",
    framework="pytorch",
    needs=(Part.FSDP,),
    unless=(Part.GATHERED_ONCE, Part.FORWARD_ONLY),
    change="reshard",
    reference=_FSDP_DOCS,
)
SHORTER_BUBBLE: Final = variants(
    "pipeline-schedule",
    Remedy(
        text="Split the batch into more micro-batches, or interleave the stages: with p stages and "
        "m micro-batches, the bubble is (p - 1) / (m + p - 1) of the time.",
        snippet="pretrain_gpt.py --micro-batch-size 1 --num-layers-per-virtual-pipeline-stage 2",
        language="bash",
        needs=(Part.MEGATRON,),
        reference=_MEGATRON_DOCS,
    ),
    Remedy(
        text="Split the batch into more micro-batches, or interleave the stages: with p stages and "
        "m micro-batches, the bubble is (p - 1) / (m + p - 1) of the time.",
        snippet=(
            "from torch.distributed.pipelining import ScheduleInterleaved1F1B\n"
            "schedule = ScheduleInterleaved1F1B(stages, n_microbatches=4 * len(stages))"
        ),
        unless=(Part.MEGATRON, Part.DEEPSPEED, *SERVERS),
        reference="https://pytorch.org/docs/stable/distributed.pipelining.html",
    ),
    Remedy(
        text="Split the batch into more micro-batches: with p stages and m micro-batches, the "
        "bubble is (p - 1) / (m + p - 1) of the time.",
        snippet='config["gradient_accumulation_steps"] = 4 * stages  # of DeepSpeed',
        needs=(Part.DEEPSPEED,),
        reference="https://www.deepspeed.ai/tutorials/pipeline/",
    ),
    Remedy(
        text="If the ranks fit into one node, use tensor parallelism in place of pipeline stages.",
        snippet="vllm serve MODEL --pipeline-parallel-size 1 --tensor-parallel-size 8",
        language="bash",
        needs=(Part.VLLM,),
        reference=_VLLM_DOCS,
    ),
    Remedy(
        text="If the ranks fit into one node, use tensor parallelism in place of pipeline stages.",
        snippet="python -m sglang.launch_server --model-path MODEL --pp-size 1 --tp-size 8",
        language="bash",
        needs=(Part.SGLANG,),
        reference=_SGLANG_DOCS,
    ),
    Remedy(
        text="If the ranks fit into one node, use tensor parallelism in place of pipeline stages.",
        snippet="llm = LLM(model=name, pipeline_parallel_size=1, tensor_parallel_size=8)",
        needs=(Part.TENSORRT_LLM,),
        reference=_TENSORRT_LLM_DOCS,
    ),
)
OVERLAP_EXPERTS: Final = variants(
    "expert-overlap",
    Remedy(
        text="Overlap the exchange of tokens with the attention of another micro-batch.",
        snippet="pretrain_gpt.py --overlap-moe-expert-parallel-comm --delay-wgrad-compute",
        language="bash",
        needs=(Part.MEGATRON,),
        reference=_MEGATRON_DOCS,
    ),
    Remedy(
        text="Exchange tokens with DeepEP, and overlap the exchange with another micro-batch.",
        snippet=(
            "vllm serve MODEL --enable-expert-parallel --enable-dbo \\\n"
            "    --all2all-backend deepep_low_latency"
        ),
        language="bash",
        needs=(Part.VLLM,),
        reference="https://docs.vllm.ai/en/stable/serving/expert_parallel_deployment.html",
    ),
    Remedy(
        text="Exchange tokens with DeepEP, and overlap the exchange with another micro-batch.",
        snippet=(
            "python -m sglang.launch_server --model-path MODEL --moe-a2a-backend deepep \\\n"
            "    --enable-two-batch-overlap"
        ),
        language="bash",
        needs=(Part.SGLANG,),
        reference=_SGLANG_DOCS,
    ),
    Remedy(
        text="Start the exchange of tokens, and compute the shared experts or another micro-batch "
        "meanwhile. Place the experts of a node's tokens on that node where the router allows it.",
        snippet=(
            "work = torch.distributed.all_to_all_single(received, tokens, async_op=True)\n"
            "shared = shared_experts(hidden)\n"
            "work.wait()"
        ),
        unless=(Part.MEGATRON, *SERVERS),
        reference="https://arxiv.org/abs/2412.19437",
    ),
)
NARROW_EMBEDDINGS: Final = Remedy(
    text="Exchange pooled embeddings and their gradients in 16 bits.",
    snippet=(
        "from torchrec.distributed import fbgemm_qcomm_codec as codec\n"
        "config = codec.QCommsConfig(\n"
        "    forward_precision=codec.CommType.FP16, backward_precision=codec.CommType.BF16\n"
        ")\n"
        "sharder = EmbeddingBagCollectionSharder(\n"
        "    qcomm_codecs_registry=codec.get_qcomm_codecs_registry(config)\n"
        ")"
    ),
    framework="pytorch",
    needs=(Part.TORCHREC,),
    change="embedding-type",
    reference="https://docs.pytorch.org/torchrec/",
)
EVEN_EMBEDDINGS: Final = Remedy(
    text="Let the planner place the tables anew, with the measured pooling factors: a rank with "
    "larger tables or more lookups holds up every exchange.",
    snippet=(
        "constraints = {\n"
        "    table.name: ParameterConstraints(pooling_factors=measured[table.name])\n"
        "    for table in tables\n"
        "}\n"
        "planner = EmbeddingShardingPlanner(topology=topology, constraints=constraints)"
    ),
    framework="pytorch",
    change="embedding-plan",
    reference="https://docs.pytorch.org/torchrec/",
)
OWN_STATISTICS: Final = Remedy(
    text="If each rank has 16 samples or more, let it compute its own batch statistics.",
    snippet="norm = torch.nn.BatchNorm2d(channels)  # not passed to convert_sync_batchnorm",
    framework="pytorch",
    change="batch-statistics",
    reference="https://pytorch.org/docs/stable/generated/torch.nn.SyncBatchNorm.html",
)
OTHER_CONTEXT_EXCHANGE: Final = variants(
    "context-parallel",
    Remedy(
        text="Exchange heads (all-to-all) in place of keys and values, or use fewer "
        "context-parallel ranks.",
        snippet="pretrain_gpt.py --context-parallel-size 2 --cp-comm-type a2a",
        language="bash",
        needs=(Part.MEGATRON,),
        reference=_MEGATRON_DOCS,
    ),
    Remedy(
        text="Use fewer context-parallel ranks: each then has more attention to hide the exchange "
        "of keys and values.",
        snippet='mesh = init_device_mesh(device.type, (4, 2), mesh_dim_names=("dp", "cp"))',
        unless=(Part.MEGATRON,),
        reference="https://pytorch.org/tutorials/prototype/context_parallel.html",
    ),
)
