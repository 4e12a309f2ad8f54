"""What program a trace is of."""

from __future__ import annotations

import pytest

from tb_perfadvisor.signals import reference_worker
from tb_perfadvisor.signals.workload.workload import Aspect, Part, Workload, workload
from tb_perfadvisor.testing import TraceBuilder, draw, run_of
from tb_perfadvisor.trace import CopyDirection, EventKind, Trace


def of(trace: Trace) -> Workload:
    return workload(reference_worker(run_of(trace)))


def with_operator(name: str, count: int = 30) -> Trace:
    builder = TraceBuilder()
    for index in range(count):
        builder.operator(name, index * 10, index * 10 + 5)
    return builder.build()


def test_a_few_operators_prove_nothing() -> None:
    program = of(with_operator("aten::add", count=19))
    assert program.mode == "unknown"
    assert program.framework == "unknown"


def test_many_operators_without_a_backward_pass_are_forward_only() -> None:
    program = of(with_operator("aten::add", count=20))
    assert program.mode == "forward only"
    assert program.has(Part.FORWARD_ONLY)


@pytest.mark.parametrize(
    ("name", "part"),
    [
        # Names from recorded traces and from the projects' own code.
        ("autograd::engine::evaluate_function: AddmmBackward0", Part.TRAINING),
        ("AddmmBackward0", Part.TRAINING),
        ("MseLossBackward", Part.TRAINING),
        ("aten::_fused_adamw_", Part.FUSED_OPTIMIZER),
        ("Optimizer.step#AdamW.step", Part.ADAM),
        ("Optimizer.step#SGD.step", Part.SGD),
        ("Optimizer.step#RMSprop.step", Part.FOREACH_OPTIMIZER),
        ("Optimizer.step#NorMuon.step", Part.OWN_OPTIMIZER),
        ("aten::_foreach_add_", Part.FOREACH_UPDATES),
        ("aten::conv3d", Part.VOLUMES),
        ("TanhBackwardBackward0", Part.SECOND_DERIVATIVES),
        ("nvFuser::Manager::runCudaFusionGroup", Part.TORCH_COMPILE),
        ("## Call CompiledFxGraph f7p6gslkv3uwbkhsf7qhhobwgh7c ##", Part.INDUCTOR),
        ("_ReduceFromModelParallelRegion", Part.TENSOR_PARALLEL),
        ("LinearWithGradAccumulationAndAsyncCommunication", Part.MEGATRON),
        ("torch.distributed.ddp.reducer::copy_bucket_to_view", Part.DDP),
        ("FSDP::pre_forward (layers.0)", Part.FSDP),
        ("DataParallel.forward", Part.DATA_PARALLEL),
        ("Torch-Compiled Region: 0/0", Part.TORCH_COMPILE),
        ("vllm::unified_attention_with_output", Part.VLLM),
        ("execute_context_0(0)_generation_8(8)", Part.VLLM),
        ("sgl_kernel::rmsnorm", Part.SGLANG),
        ("trtllm::fused_moe", Part.SERVER),
        ("decode[bs=117/128 tok=117 d=117]", Part.SERVER),
        ("CheckpointFunction", Part.CHECKPOINTING),
    ],
)
def test_operators_prove_parts(name: str, part: Part) -> None:
    program = of(with_operator(name))
    (fact,) = [fact for fact in program.facts if fact.part is part]
    assert fact.evidence == f"30 × {name}"


@pytest.mark.parametrize(
    ("name", "absent"),
    [
        ("DistributedDataParallel.forward", Part.DATA_PARALLEL),
        ("aten::_fused_rms_norm", Part.FUSED_OPTIMIZER),
        ("aten::slice_backward", Part.DDP),
        ("my::Backward_compatible", Part.TRAINING),
    ],
)
def test_similar_names_prove_nothing(name: str, absent: Part) -> None:
    assert not of(with_operator(name)).has(absent)


@pytest.mark.parametrize(
    ("frame", "part"),
    [
        ("vllm/v1/worker/gpu_model_runner.py(3380): execute_model", Part.VLLM),
        ("vllm/v1/engine/async_llm.py(529): generate", Part.FRONT_END),
        ("/sgl-workspace/sglang/python/sglang/srt/managers/scheduler.py(2919): run", Part.SGLANG),
        ("transformers/trainer.py(3000): training_step", Part.HF_TRAINER),
        ("transformers/pipelines/base.py(1173): forward", Part.HF_PIPELINE),
        (
            "/usr/lib/python3/site-packages/lightning/pytorch/loops/fit_loop.py(1): run",
            Part.LIGHTNING,
        ),
        ("diffusers/pipelines/flux/pipeline_flux.py(7): __call__", Part.DIFFUSERS),
        ("torch/utils/checkpoint.py(596): _internal", Part.CHECKPOINTING),
        # The corpus' recordings of SGLang; the others by the projects' code.
        (
            "/python/sglang/srt/managers/scheduler.py(1594): event_loop_overlap",
            Part.OVERLAPPED_SCHEDULE,
        ),
        (
            "/python/sglang/srt/managers/overlap_utils.py(130): resolve_future",
            Part.OVERLAPPED_SCHEDULE,
        ),
        (
            "vllm/v1/core/sched/async_scheduler.py(16): _update_after_schedule",
            Part.OVERLAPPED_SCHEDULE,
        ),
    ],
)
def test_python_frames_prove_frameworks(frame: str, part: Part) -> None:
    trace = TraceBuilder().host(EventKind.PYTHON, frame, 0, 10).build()
    assert of(trace).has(part)


def test_a_server_is_named_after_its_framework() -> None:
    frame = "/x/sglang/srt/managers/scheduler.py(1): run_batch"
    program = of(TraceBuilder().host(EventKind.PYTHON, frame, 0, 10).build())
    assert program.mode == "inference server"
    assert program.framework == "SGLang"
    assert program.of(Aspect.FRAMEWORK) == (Part.SGLANG,)


def test_the_device_says_who_made_it() -> None:
    drawn = draw("""
        cell 1ms
        step  |....|....|
        main  |oo..|oo..|
        gpu 7 |.KKK|.KKK|
    """)
    program = of(drawn)
    assert program.has(Part.GPU)
    assert not program.has(Part.CPU_ONLY)
    assert of(with_operator("aten::add")).has(Part.CPU_ONLY)


def test_a_long_name_is_cut() -> None:
    program = of(with_operator("vllm::" + 200 * "x"))
    (fact,) = [fact for fact in program.facts if fact.part is Part.VLLM]
    assert len(fact.evidence) < 100


def with_collectives(around: str, dtype: str) -> Trace:
    builder = TraceBuilder().operator("AddmmBackward0", 0, 1)
    for start in range(0, 1_000, 100):
        builder.annotation(around, start, start + 20)
        builder.launch(start + 5, start + 10, key=str(start))
        builder.collective(
            "all-reduce", start + 30, start + 60, dtype=dtype, launched_by=str(start)
        )
    return builder.build()


def test_collectives_tell_how_the_program_is_parallel() -> None:
    program = of(with_collectives("_ReduceFromModelParallelRegion", "BFloat16"))
    assert program.of(Aspect.PARALLELISM) == (Part.TENSOR_PARALLEL,)
    # What tensor-parallel layers exchange are activations.
    assert not program.has(Part.GRADIENTS_16_BIT)


@pytest.mark.parametrize(("dtype", "is_16_bit"), [("BFloat16", True), ("Float", False)])
def test_gradients_have_the_width_of_their_collectives(dtype: str, is_16_bit: bool) -> None:
    program = of(with_collectives("torch::autograd::AccumulateGrad", dtype))
    assert program.has(Part.GRADIENTS_16_BIT) is is_16_bit


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        # grain/_src/python/dataset/stats.py; tensorflow/core/data/service
        ("MapDatasetIterator.__next__", {Part.GRAIN}),
        ("ShuffleMapDataset.__getitem__", {Part.GRAIN}),
        ("Iterator::Root::Prefetch::DataServiceV2", {Part.TFDATA, Part.DATA_SERVICE}),
        ("Iterator::Root::Prefetch::Map", {Part.TFDATA}),
    ],
)
def test_who_prepares_the_input(name: str, parts: set[Part]) -> None:
    trace = TraceBuilder("jax").host(EventKind.INPUT_WORK, name, 0, 10).build()
    found = {fact.part for fact in of(trace).facts if fact.part.aspect is Aspect.INPUT}
    assert found == parts


@pytest.mark.parametrize(
    ("kernel", "is_custom"),
    [
        # vLLM's and SGLang's, TensorRT-LLM's, PyTorch's symmetric memory
        ("void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*)", True),
        ("void tensorrt_llm::kernels::oneShotAllReduceKernel<__nv_bfloat16, 8>(Params)", True),
        ("void one_shot_all_reduce_kernel<c10::BFloat16, 16, 8>(c10::BFloat16**)", True),
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", False),
    ],
)
def test_all_reduces_of_servers(kernel: str, is_custom: bool) -> None:
    program = of(TraceBuilder().collective(kernel, 0, 9).build())
    assert program.has(Part.CUSTOM_ALL_REDUCE) is is_custom


@pytest.mark.parametrize(
    "name",
    [
        # Of PyTorch; those that call others (TorchRec, torch.distributed.optim); with own kernels.
        *("Adam", "SGD", "LBFGS", "SparseAdam", "CombinedOptimizer", "KeyedOptimizerWrapper"),
        *("ZeroRedundancyOptimizer", "EMAOptimizer", "FusedLAMB", "AdamW8bit"),
    ],
)
def test_optimizers_of_libraries_are_not_the_programs_own(name: str) -> None:
    assert not of(with_operator(f"Optimizer.step#{name}.step")).has(Part.OWN_OPTIMIZER)


def test_compilers_other_than_inductor_have_none_of_its_options() -> None:
    program = of(with_operator("CompiledFunctionBackward"))
    assert program.has(Part.TORCH_COMPILE)
    assert not program.has(Part.INDUCTOR)


@pytest.mark.parametrize(
    ("pageable", "stream", "size_bytes", "parts"),
    [
        (0, 9, 1 << 20, {Part.PINNED_BATCHES, Part.COPY_STREAM}),
        (0, 7, 1 << 20, {Part.PINNED_BATCHES}),
        (1, 9, 1 << 20, {Part.COPY_STREAM}),
        (0, 9, 64 << 10, set()),  # small copies prove nothing
    ],
)
def test_how_batches_are_copied(
    pageable: int, stream: int, size_bytes: int, parts: set[Part]
) -> None:
    builder = TraceBuilder()
    builder.kernel("sgemm", 0, 100)
    builder.copy(
        CopyDirection.HOST_TO_DEVICE,
        100,
        200,
        pageable=pageable,
        size_bytes=size_bytes,
        stream=stream,
    )
    program = of(builder.build())
    about_copies = {Part.PINNED_BATCHES, Part.COPY_STREAM}
    assert {part for part in about_copies if program.has(part)} == parts


@pytest.mark.parametrize(
    ("capability", "is_old"), [("6.0", True), ("7.0", False), ("9.0", False), ("", False)]
)
def test_inductor_generates_nothing_for_old_gpus(capability: str, is_old: bool) -> None:
    builder = TraceBuilder().device("Quadro GP100", compute_capability=capability)
    builder.host(EventKind.LAUNCH, "cudaLaunchKernel", 0, 5, key="a")
    program = of(builder.kernel("add", 10, 20, launched_by="a").build())
    assert program.has(Part.BEFORE_TRITON) == is_old


@pytest.mark.parametrize(
    ("name", "is_own"),
    [
        ("## forward ##", True),
        ("step 0", True),
        ("data copy in 0", True),
        ("ProfilerStep#3", False),
        ("Optimizer.step#SGD.step", False),
        ("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", False),
        ("nccl:all_reduce", False),
        ("ncclAllReduce", False),
        ("[DALI][Executor] RunMixed", False),
        ("GraphCache::runGraphWithInputs", False),
    ],
)
def test_ranges_of_libraries_are_not_the_programs_own(name: str, is_own: bool) -> None:
    assert of(TraceBuilder().annotation(name, 0, 9).build()).has(Part.RANGES) == is_own


@pytest.mark.parametrize(("launches", "is_chopped"), [(19, False), (29, True), (30, False)])
def test_few_launches_between_decisions(launches: int, is_chopped: bool) -> None:
    # Three decisions: 10 launches for each are enough, and 19 launches are no program.
    builder = TraceBuilder()
    for index, name in enumerate(("aten::nonzero", "aten::is_nonzero", "aten::nonzero")):
        builder.operator(name, index * 10, index * 10 + 5)
    for index in range(launches):
        builder.launch(100 + index * 10, 105 + index * 10, key=str(index))
    assert of(builder.build()).has(Part.DECISIONS) == is_chopped


@pytest.mark.parametrize(
    ("lengths", "changes"),
    [
        ((128, 128, 128, 128), False),
        ((128, 64, 128, 64), True),  # one of the three later ones is new
        ((128, 97, 64, 33), True),
        ((128, 64), False),  # two kinds of steps, for all that is known
    ],
)
def test_shapes_that_change(lengths: tuple[int, ...], changes: bool) -> None:
    builder = TraceBuilder()
    for number, length in enumerate(lengths):
        at = number * 1000
        builder.step(number, at, at + 1000)
        shapes = [[length, 512], [512, 512]]
        builder.operator("aten::mm", at, at + 900, shapes=shapes, dtypes=["float"] * 2)
    assert of(builder.build()).has(Part.NEW_SHAPES) == changes
