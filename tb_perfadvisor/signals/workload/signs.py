"""Names of events that prove a part of the program.

Sources: the named projects' own code, where the functions, operators and annotations are defined.
"""

from __future__ import annotations

import re

from msgspec import Struct

from tb_perfadvisor.signals.workload.parts import Part
from tb_perfadvisor.trace import EventKind
from tb_perfadvisor.trace.generated_code import GENERATED_FILE, GENERATED_KERNEL


class Sign(Struct, frozen=True):
    """Events of some kinds whose names match a pattern prove a part."""

    part: Part
    kinds: tuple[EventKind, ...]
    pattern: re.Pattern[str]
    anywhere: bool = False
    """Whether the pattern may match inside the name, not only at its start."""

    def matches(self, name: str) -> bool:
        """Whether a name proves the part."""
        find = self.pattern.search if self.anywhere else self.pattern.match
        return find(name) is not None


_CALLS = (EventKind.OPERATOR, EventKind.ANNOTATION)
_FRAMES = (EventKind.PYTHON,)
_KERNELS = (EventKind.KERNEL,)


def _calls(part: Part, pattern: str) -> Sign:
    return Sign(part, _CALLS, re.compile(pattern))


def _frames(part: Part, path: str) -> Sign:
    """A Python frame is `path/to/file.py(line): function`; the path may start anywhere."""
    return Sign(part, _FRAMES, re.compile(rf"(?:^|/){path}"), anywhere=True)


STACK_SIGNS: tuple[Sign, ...] = (
    _frames(Part.TRAINING, r"torch/(?:optim/\w+|autograd/(?:__init__|graph))\.py"),
    _frames(Part.OPTIMIZER, r"torch/optim/\w+\.py"),
)
"""What call stacks of allocations prove besides."""

SIGNS: tuple[Sign, ...] = (
    # Frameworks on top: by the files of their code, where stacks were recorded.
    _frames(Part.VLLM, r"vllm/(?:v1/|worker/|engine/|model_executor/)"),
    _frames(Part.FRONT_END, r"vllm/v1/engine/async_llm\.py"),
    _frames(Part.SGLANG, r"sglang/srt/"),
    _frames(Part.TENSORRT_LLM, r"tensorrt_llm/_torch/"),
    _frames(
        Part.LIGHTNING,
        r"(?:pytorch_lightning|lightning/pytorch|lightning_fabric|lightning/fabric)/",
    ),
    _frames(Part.HF_TRAINER, r"transformers/trainer\.py"),
    _frames(Part.HF_PIPELINE, r"transformers/pipelines/"),
    _frames(Part.TRANSFORMERS, r"transformers/(?:models|generation|integrations)/"),
    _frames(Part.DIFFUSERS, r"diffusers/(?:pipelines|models)/"),
    _frames(Part.ACCELERATE, r"accelerate/accelerator\.py"),
    _frames(Part.DEEPSPEED, r"deepspeed/runtime/"),
    _frames(Part.MEGATRON, r"megatron/(?:core|training|legacy)/"),
    _frames(Part.TORCHTITAN, r"torchtitan/"),
    _frames(Part.TORCHREC, r"torchrec/"),
    _frames(Part.KERAS, r"keras/(?:src/)?(?:trainers|engine|backend)/"),
    _frames(Part.FLAX, r"flax/"),
    # And by the names of their operators and annotations.
    _calls(Part.VLLM, r"vllm::|_vllm_\w*C::|execute_context_\d+\(\d+\)_generation_\d+\("),
    _calls(
        Part.SERVER,
        r"execute_(?:context_)?\d+_context_\d+|(?:prefill|decode)\[bs=\d+(?:/\d+)? tok=\d",
    ),
    _calls(Part.TENSORRT_LLM, r"trtllm::|\[Executor\] _forward_step\b"),
    _calls(Part.SGLANG, r"step\[(?:DECODE|EXTEND|PREFILL|MIXED|IDLE)\b|sgl_kernel::|sglang::"),
    _calls(Part.LIGHTNING, r"\[pl\]|\[(?:Strategy|LightningModule|LightningDataModule|Callback)\]"),
    _calls(Part.DEEPSPEED, r"DeepSpeed(?:Engine|ZeroOptimizer)"),
    _calls(
        Part.MEGATRON,
        r"LinearWithGradAccumulationAndAsyncCommunication|_?VocabParallelCrossEntropy",
    ),
    _calls(Part.TORCHREC, r"## (?:wait_)?sparse_data_dist ##|KeyedJaggedTensor"),
    _calls(
        Part.KERAS,
        r"(?:Eager(?:Local)?Execute: )?__inference_(?:multi_step_on_iterator|"
        r"(?:train|test|predict)_function|one_step_on_(?:data|iterator))"
        r"|multi_step_on_iterator",
    ),
    Sign(Part.KERAS, (EventKind.STEP,), re.compile(r"Profiled batch")),
    # Parallelism.
    _calls(Part.DDP, r"DistributedDataParallel\.|torch\.distributed\.ddp\.reducer::"),
    _frames(Part.DDP, r"torch/nn/parallel/distributed\.py"),
    _calls(Part.FSDP, r"FullyShardedDataParallel\.|FSDP::|FSDP\w*\."),
    _frames(Part.FSDP, r"torch/distributed/(?:fsdp|_composable/fsdp)/"),
    _frames(Part.DATA_PARALLEL, r"torch/nn/parallel/data_parallel\.py"),
    _calls(Part.DATA_PARALLEL, r"DataParallel\.forward"),
    _calls(
        Part.TENSOR_PARALLEL,
        r"_(?:Reduce|Copy|Gather|Scatter)\w*ModelParallelRegion"
        r"|_\w+SequenceParallelRegion|_?VocabParallelCrossEntropy",
    ),
    _frames(Part.TENSOR_PARALLEL, r"(?:torch/distributed/tensor|megatron/core/tensor_parallel)/"),
    _frames(
        Part.PIPELINE_PARALLEL,
        r"(?:torch/distributed/pipelining|megatron/core/pipeline_parallel|deepspeed/runtime/pipe)/",
    ),
    # Input.
    Sign(Part.LOADER, (EventKind.INPUT_WAIT,), re.compile(r"enumerate\(DataLoader\)|.*DataLoader")),
    Sign(
        Part.LOADER_WORKERS,
        (EventKind.INPUT_WAIT,),
        re.compile(r".*_MultiProcessingDataLoaderIter"),
    ),
    _frames(Part.LOADER, r"torch/utils/data/dataloader\.py"),
    Sign(
        Part.TFDATA,
        (EventKind.INPUT_WAIT, EventKind.INPUT_WORK),
        re.compile(r"Iterator|.*IteratorGetNext|.*Dataset(?!Iterator\.|\.__getitem__)"),
    ),
    Sign(
        Part.DATA_SERVICE,
        (EventKind.INPUT_WORK,),
        re.compile(r"Iterator::.*::DataService(?:V\d+)?$"),
    ),
    # grain/_src/python/dataset/stats.py
    Sign(
        Part.GRAIN,
        (EventKind.INPUT_WAIT, EventKind.INPUT_WORK),
        re.compile(r"\w*(?:DatasetIterator\.__next__|MapDataset\.__getitem__)$"),
    ),
    Sign(
        Part.PYTHON_INPUT,
        (EventKind.INPUT_WAIT, EventKind.INPUT_WORK),
        re.compile(r".*(?:Generator|PyFunc|NumpyFunction)"),
    ),
    # What is compiled or recorded already.
    Sign(Part.DEVICE_GRAPHS, (EventKind.LAUNCH,), re.compile(r"(?:cuda|cu|hip)GraphLaunch")),
    _calls(
        Part.TORCH_COMPILE,
        r"Torch-Compiled Region|CompiledFunction(?:Backward)?$|## Call CompiledFxGraph ",
    ),
    Sign(Part.TORCH_COMPILE, _FRAMES, GENERATED_FILE, anywhere=True),
    Sign(Part.TORCH_COMPILE, _KERNELS, GENERATED_KERNEL),
    _calls(Part.INDUCTOR, r"## Call CompiledFxGraph "),
    Sign(Part.INDUCTOR, _FRAMES, GENERATED_FILE, anywhere=True),
    Sign(Part.INDUCTOR, _KERNELS, GENERATED_KERNEL),
    Sign(
        Part.CUSTOM_ALL_REDUCE,
        (EventKind.KERNEL, EventKind.COLLECTIVE),
        re.compile(
            r"cross_device_reduce|(?:one|two)_?shot_?\w*reduce|multimem_all|lamport|quick_?reduce",
            re.IGNORECASE,
        ),
        anywhere=True,
    ),
    _frames(
        Part.OVERLAPPED_SCHEDULE,
        r"(?:vllm/v1/core/sched/async_scheduler\.py"
        r"|sglang/srt/managers/(?:scheduler\.py\(\d+\): event_loop_overlap|overlap_utils\.py)"
        r"|tensorrt_llm/_torch/pyexecutor/py_executor\.py\(\d+\): _executor_loop_overlap)",
    ),
    # Training, and how it is done.
    _calls(
        Part.TRAINING,
        r"Optimizer\.(?:step|zero_grad)#|autograd::engine::evaluate_function|\w+Backward\d*$"
        r"|ResourceApply|ApplyGradient|gradient_tape/"
        r"|(?:Eager(?:Local)?Execute: )?__inference_train_function",
    ),
    _calls(Part.OPTIMIZER, r"Optimizer\.(?:step|zero_grad)#|ResourceApply"),
    _calls(
        Part.FUSED_OPTIMIZER,
        r"aten::_fused_(?:adam|adamw|sgd|adagrad)_|Optimizer\.step#(?:Fused|DeepSpeedCPU)",
    ),
    # torch.optim: which optimizers have a fused or a foreach form.
    _calls(Part.ADAM, r"Optimizer\.step#AdamW?\.step"),
    _calls(Part.SGD, r"Optimizer\.step#SGD\.step"),
    _calls(
        Part.FOREACH_OPTIMIZER,
        r"Optimizer\.step#(?:Adadelta|Adagrad|Adamax|ASGD|NAdam|RAdam|RMSprop|Rprop)\.step",
    ),
    # Not those of PyTorch, not those that call others, and not those whose name says that they are
    # fused or quantized, which have kernels of their own.
    _calls(
        Part.OWN_OPTIMIZER,
        r"Optimizer\.step#(?!(?:AdamW?|SGD|Adadelta|Adafactor|Adagrad|Adamax|ASGD|LBFGS|NAdam|RAdam"
        r"|RMSprop|Rprop|SparseAdam)\.step|\w*(?:Optimizer|Wrapper)\w*\.step|Fused|\w*8bit)\w+\.step",
    ),
    _calls(Part.FOREACH_UPDATES, r"aten::_foreach_(?:add|addcdiv|addcmul|lerp)_$"),
    _calls(Part.CHECKPOINTING, r"CheckpointFunction"),
    _frames(Part.CHECKPOINTING, r"torch/utils/checkpoint\.py"),
    Sign(Part.STEP_CALLS, (EventKind.STEP,), re.compile(r"ProfilerStep#")),
    # The vendor, by the names of its runtime.
    Sign(Part.AMD, (EventKind.LAUNCH, EventKind.SYNCHRONIZE), re.compile(r"hip[A-Z]")),
    Sign(Part.NVIDIA, (EventKind.LAUNCH, EventKind.SYNCHRONIZE), re.compile(r"cu(?:da)?[A-Z]")),
)
