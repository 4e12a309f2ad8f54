"""Remedies that replay recorded GPU graphs instead of launching single kernels."""

from __future__ import annotations

from tb_perfadvisor.rules.finding import Remedy
from tb_perfadvisor.rules.remedies.variants import variants
from tb_perfadvisor.signals.workload.parts import SERVERS, Part

_VLLM = "https://docs.vllm.ai/en/stable/design/cuda_graphs/"
_SGLANG = "https://github.com/sgl-project/sglang/blob/main/python/sglang/srt/server_args.py"
_TENSORRT_LLM = "https://nvidia.github.io/TensorRT-LLM/llm-api/reference.html"
_TORCH_COMPILE = "https://docs.pytorch.org/docs/stable/generated/torch.compile.html"
_CUDA_GRAPHS = "https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs"

GRAPHS = variants(
    "graphs",
    Remedy(
        text="Let vLLM replay GPU graphs: leave enforce_eager off, and cudagraph_mode at its "
        "default.",
        snippet="llm = LLM(model=name, enforce_eager=False)  # or no --enforce-eager in vllm serve",
        needs=(Part.VLLM,),
        reference=_VLLM,
    ),
    Remedy(
        text="Let SGLang replay GPU graphs in all decode steps: leave --disable-cuda-graph out, "
        "and record graphs for batches as large as yours. Releases before 0.5.15 call the option "
        "--cuda-graph-max-bs.",
        snippet="python -m sglang.launch_server --model-path MODEL --cuda-graph-max-bs-decode 64",
        language="bash",
        needs=(Part.SGLANG,),
        reference=_SGLANG,
    ),
    Remedy(
        text="Let TensorRT-LLM replay GPU graphs in all decode steps: record them for batches as "
        "large as yours, and pad smaller batches to the next recorded size.",
        snippet="config = CudaGraphConfig(max_batch_size=64, enable_padding=True)\n"
        "llm = LLM(model=name, cuda_graph_config=config)",
        needs=(Part.TENSORRT_LLM,),
        reference=_TENSORRT_LLM,
    ),
    Remedy(
        text="Let Megatron record each layer as a GPU graph, if shapes stay the same.",
        snippet="torchrun pretrain_gpt.py --cuda-graph-impl local --te-rng-tracker",
        language="bash",
        needs=(Part.MEGATRON,),
        reference="https://docs.nvidia.com/megatron-core/developer-guide/latest/",
    ),
    Remedy(
        text="Let torchtitan replay the step as a GPU graph: leave training.disable_cuda_graphs "
        "off.",
        needs=(Part.TORCHTITAN,),
        reference="https://github.com/pytorch/torchtitan/blob/main/torchtitan/config/configs.py",
    ),
    Remedy(
        text="Let the Trainer compile the model and replay it as GPU graphs, if shapes stay the "
        "same: one launch replaces thousands.",
        snippet='args = TrainingArguments("out", torch_compile=True, '
        'torch_compile_mode="reduce-overhead")',
        needs=(Part.HF_TRAINER,),
        unless=(Part.TORCH_COMPILE,),
        reference="https://huggingface.co/docs/transformers/main_classes/trainer",
    ),
    Remedy(
        text="Let Accelerate compile the model and replay it as GPU graphs, if shapes stay the "
        "same: one launch replaces thousands.",
        snippet="from accelerate.utils import TorchDynamoPlugin\n"
        'plugin = TorchDynamoPlugin(backend="inductor", mode="reduce-overhead")\n'
        "accelerator = Accelerator(dynamo_plugin=plugin)",
        needs=(Part.ACCELERATE,),
        unless=(Part.TORCH_COMPILE,),
        reference="https://huggingface.co/docs/accelerate/usage_guides/compilation",
    ),
    Remedy(
        text="Let the compiler replay its kernels as GPU graphs, if shapes stay the same: set "
        "this before the model is compiled.",
        snippet="torch._inductor.config.triton.cudagraphs = True",
        needs=(Part.TORCH_COMPILE,),
        reference="https://docs.pytorch.org/docs/stable/torch.compiler_cudagraph_trees.html",
    ),
    Remedy(
        text="Compile the module and replay it as GPU graphs, if shapes stay the same: one launch "
        "replaces thousands.",
        snippet='trainer.fit(torch.compile(module, mode="reduce-overhead"), datamodule)',
        needs=(Part.LIGHTNING,),
        unless=(Part.TORCH_COMPILE,),
        reference="https://lightning.ai/docs/pytorch/stable/advanced/compile.html",
    ),
    Remedy(
        text="Let DeepSpeed compile the model and replay it as GPU graphs, if shapes stay the "
        "same: one launch replaces thousands.",
        snippet="engine, optimizer, _, _ = deepspeed.initialize(model=model, config=config)\n"
        'engine.compile(compile_kwargs={"mode": "reduce-overhead"})',
        needs=(Part.DEEPSPEED,),
        unless=(Part.TORCH_COMPILE,),
        reference="https://deepspeed.readthedocs.io/en/latest/training.html",
    ),
    Remedy(
        text="Compile the model that runs in each denoising step, and replay it as a GPU graph: "
        "one launch replaces thousands.",
        snippet="pipe.transformer = torch.compile(  # or pipe.unet\n"
        '    pipe.transformer, mode="reduce-overhead", fullgraph=True\n'
        ")",
        needs=(Part.DIFFUSERS,),
        unless=(Part.TORCH_COMPILE,),
        reference="https://huggingface.co/docs/diffusers/optimization/fp16",
    ),
    Remedy(
        text="Compile the pipeline's model and replay it as GPU graphs, if shapes stay the same: "
        "one launch replaces thousands.",
        snippet='pipe.model = torch.compile(pipe.model, mode="reduce-overhead")',
        needs=(Part.HF_PIPELINE,),
        unless=(Part.TORCH_COMPILE,),
        reference="https://huggingface.co/docs/transformers/perf_torch_compile",
    ),
    Remedy(
        text="Compile the model and replay it as GPU graphs, if shapes stay the same: one launch "
        "replaces thousands.",
        snippet='model = torch.compile(model, mode="reduce-overhead")',
        needs=(Part.GPU,),
        unless=(*SERVERS, Part.TORCH_COMPILE),
        reference=_TORCH_COMPILE,
    ),
    unless=(Part.DEVICE_GRAPHS, Part.CPU_ONLY, Part.TPU, Part.XLA),
)
"""Replay the step as GPU graphs (CUDA or HIP)."""

GRAPH_SIZES = variants(
    "graph-sizes",
    Remedy(
        text="Record graphs for the batch sizes that occur: a smaller batch is padded to the next "
        "recorded size, and one above the largest is launched kernel by kernel.",
        snippet="llm = LLM(\n"
        "    model=name,\n"
        '    compilation_config={"cudagraph_capture_sizes": [1, 2, 4, 8, 16, 32, 64]},\n'
        ")",
        needs=(Part.VLLM, Part.DEVICE_GRAPHS),
        reference=_VLLM,
    ),
    Remedy(
        text="Record graphs for the batch sizes that occur: a smaller batch is padded to the next "
        "recorded size, and one above the largest is launched kernel by kernel. Releases before "
        "0.5.15 call the option --cuda-graph-bs.",
        snippet="python -m sglang.launch_server --model-path MODEL \\\n"
        "    --cuda-graph-bs-decode 1 2 4 8 12 16 24 32",
        language="bash",
        needs=(Part.SGLANG, Part.DEVICE_GRAPHS),
        reference=_SGLANG,
    ),
    Remedy(
        text="Record graphs for the batch sizes that occur. With padding, a smaller batch runs as "
        "the next recorded size; without it, a batch of another size is launched kernel by kernel.",
        snippet="config = CudaGraphConfig(\n"
        "    batch_sizes=[1, 2, 4, 8, 12, 16, 24, 32], enable_padding=True\n"
        ")\n"
        "llm = LLM(model=name, cuda_graph_config=config)",
        needs=(Part.TENSORRT_LLM, Part.DEVICE_GRAPHS),
        reference=_TENSORRT_LLM,
    ),
)
"""Which batch sizes a server has graphs for."""

MORE_IN_GRAPHS = variants(
    "more-in-graphs",
    Remedy(
        text="Record the part of the step that launches these operators in a graph as well, if its "
        "shapes stay the same.",
        needs=(Part.DEVICE_GRAPHS,),
        unless=SERVERS,
        reference=_CUDA_GRAPHS,
    ),
)
"""Move the launches between two replays into a graph."""

REPLAY_INPUTS = (
    *variants(
        "replay-ahead",
        Remedy(
            text="Prepare the inputs of the next replay while the device runs the current one: a "
            "replay returns at once. Copy them from pinned memory into buffers that stay on the "
            "device.",
            snippet="copied = torch.cuda.Event()\n"
            "static_input.copy_(pinned_input, non_blocking=True)\n"
            "copied.record()\n"
            "graph.replay()  # returns at once\n"
            "next_input = prepare(next(batches))  # while the device replays\n"
            "copied.synchronize()\n"
            "pinned_input.copy_(next_input)",
            unless=(*SERVERS, Part.CPU_ONLY, Part.TPU),
            reference=_CUDA_GRAPHS,
        ),
    ),
    *variants(
        "replay-inputs",
        Remedy(
            text="Launch fewer small copies and kernels before each replay: put all sizes, indices "
            "and offsets into one buffer and copy it once, and move what is computed from them "
            "into the graph.",
            unless=SERVERS,
            reference=_CUDA_GRAPHS,
        ),
    ),
)
"""Prepare the inputs of a replay earlier, and with fewer launches."""
