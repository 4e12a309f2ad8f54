from __future__ import annotations

import pytest

from tb_perfadvisor.ingest.xspace.interpret.host_planes import LIBRARY_CALL, kind_of_name
from tb_perfadvisor.trace import EventKind
from tests.support.xspaces import Drawing, Reference, kinds, row_of


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        # TensorFlow 2.21 (recorded on a CPU).
        ("IteratorGetNextOp::DoCompute", EventKind.INPUT_WAIT),
        ("IteratorGetNextAsOptionalOp::DoCompute", EventKind.INPUT_WAIT),
        ("EagerLocalExecute: IteratorGetNext", EventKind.INPUT_WAIT),
        ("Iterator::Root::Prefetch::MapAndBatch::Range", EventKind.INPUT_WORK),
        ("MapAndBatchProduce", EventKind.INPUT_WORK),
        ("InstantiatedCapturedFunction::RunAsync", EventKind.INPUT_WORK),
        ("sequential_4_1/conv2d_8_1/Relu:_FusedConv2D", EventKind.OPERATOR),
        ("MatMul:_MklMatMul", EventKind.OPERATOR),
        ("EagerLocalExecute: Fill", EventKind.OPERATOR),
        ("EagerLocalExecute: __inference_step_8407", EventKind.ANNOTATION),
        ("__inference_g_39:__inference_g_39", EventKind.ANNOTATION),
        ("ExecutorState::Process", EventKind.ANNOTATION),
        ("tf.function-graph_building", EventKind.COMPILE),
        ("CpuCompiler::RunBackend", EventKind.COMPILE),
        # JAX 0.10 (recorded on a CPU) and the TPU profile of XProf's tests.
        ("trace_to_jaxpr_dynamic", EventKind.COMPILE),
        ("lower_sharding_computation", EventKind.COMPILE),
        ("backend_compile_and_load", EventKind.COMPILE),
        ("PjRtCpuClient::Compile", EventKind.COMPILE),
        ("XLA::TPU lowering and optimization", EventKind.COMPILE),
        ("PjitFunction(step)", EventKind.ANNOTATION),
        ("CommonPjRtBuffer::Await", EventKind.SYNCHRONIZE),
        ("np.asarray(jax.Array)", EventKind.SYNCHRONIZE),
        ("DoEnqueueProgram", EventKind.LAUNCH),
        ("Rendezvous", EventKind.HOST_COLLECTIVE),
        ("Wait: pending_threads=3/4", EventKind.HOST_COLLECTIVE),
        ("$core.py:660 bind", EventKind.PYTHON),
        ("$builtins isinstance", EventKind.PYTHON),
        ("$api.py:3154 block_until_ready", EventKind.SYNCHRONIZE),
        # JAX on MI300X (TraceLens' traces).
        ("hipExtModuleLaunchKernel", EventKind.LAUNCH),
        ("hipMemcpyHtoDAsync", EventKind.LAUNCH),
        ("hipStreamWaitEvent", EventKind.RUNTIME),
        ("DeviceMemAllocator::Alloc", EventKind.ALLOCATE),
        ("jit_matmul:XLA GPU module", EventKind.ANNOTATION),
        # CUPTI's names (CUDA's driver interface).
        ("cuLaunchKernelEx", EventKind.LAUNCH),
        ("cuGraphLaunch", EventKind.LAUNCH),
        ("cuMemsetD32Async", EventKind.LAUNCH),
        ("cuStreamSynchronize", EventKind.SYNCHRONIZE),
        ("cuCtxSynchronize", EventKind.SYNCHRONIZE),
        ("cuMemAllocAsync", EventKind.ALLOCATE),
        ("cuMemFree_v2", EventKind.ALLOCATE),
        ("cuEventQuery", EventKind.RUNTIME),
        ("current_step", EventKind.ANNOTATION),
    ],
)
def test_kind_by_name(name: str, kind: EventKind) -> None:
    assert kind_of_name(name, has_device=True).name == kind.name


def test_collectives_are_on_the_host_only_without_a_device() -> None:
    name = "CollectiveReduceV2:CollectiveReduceV2"
    assert kind_of_name(name, has_device=False) == EventKind.HOST_COLLECTIVE
    assert kind_of_name(name, has_device=True) == EventKind.OPERATOR


def test_step_marker_needs_only_a_number() -> None:
    drawing = Drawing()
    host = drawing.plane("/host:CPU")
    line = drawing.line(host, "python")
    drawing.event(host, line, "Profiled batch", 0, 10, step_num=7)  # Keras 3 sets no `_r`
    drawing.event(host, line, "train", 20, 10, step_num=8, _r=1)
    trace = drawing.read()
    assert kinds(trace) == {"Profiled batch": "STEP", "train": "STEP"}
    assert trace.events.step.tolist() == [7, 8]


def test_kind_of_an_eager_call_comes_from_its_stat() -> None:
    drawing = Drawing()
    host = drawing.plane("/host:CPU")
    line = drawing.line(host, "python")
    for start, op, is_func in ((0, "MatMul", 0), (20, "IteratorGetNext", 0), (40, "__inf_8", 1)):
        drawing.event(
            host, line, "EagerExecute", start, 10, eager_op=Reference(op), is_func=is_func
        )
    assert kinds(drawing.read()) == {
        "EagerExecute: MatMul": "OPERATOR",
        "EagerExecute: IteratorGetNext": "INPUT_WAIT",
        "EagerExecute: __inf_8": "ANNOTATION",
    }


def test_xla_on_the_cpu_runs_operators_on_host_threads() -> None:
    drawing = Drawing()
    host = drawing.plane("/host:CPU")
    line = drawing.line(host, "tf_XLAEigen/123")
    for start, name in ((0, "dot.2"), (20, "all-reduce.4")):
        drawing.event(host, line, name, start, 10, hlo_op=Reference(name))
        drawing.event(host, line, f"end: {name}", start + 10, 1)
    assert kinds(drawing.read()) == {
        "dot.2": "OPERATOR",
        "end: dot.2": "ANNOTATION",
        "all-reduce.4": "HOST_COLLECTIVE",
        "end: all-reduce.4": "ANNOTATION",
    }


def test_equal_operations_of_two_programs_are_separate() -> None:
    drawing = Drawing()
    host = drawing.plane("/host:CPU")
    line = drawing.line(host, "tf_XLAEigen/123")
    for start, program in ((0, 3), (20, 4), (40, 3)):
        names = {"hlo_op": Reference("dot.2"), "hlo_module": Reference("jit_step")}
        drawing.event(host, line, "dot.2", start, 10, program_id=program, **names)
    trace = drawing.read()
    assert [trace.text(int(text_id)) for text_id in trace.hlo.module] == [
        "jit_step(3)",
        "jit_step(4)",
    ]
    assert trace.hlo_events.op.tolist() == [0, 1, 0]


def test_threads_of_one_purpose() -> None:
    drawing = Drawing()
    host = drawing.plane("/host:CPU")
    data = drawing.line(host, "tf_data_private_threadpool/5")
    drawing.event(host, data, "PyFunc:PyFunc", 0, 10)
    compiling = drawing.line(host, "tf_xla-cpu-codegen/6")
    drawing.event(host, compiling, "CanonicalizerPass", 0, 10)
    found = kinds(drawing.read())
    assert found == {"PyFunc:PyFunc": "INPUT_WORK", "CanonicalizerPass": "COMPILE"}


def test_traced_call_is_compilation_if_nothing_finer_is_recorded() -> None:
    drawing = Drawing()
    host = drawing.plane("/host:CPU")
    line = drawing.line(host, "python")
    drawing.event(host, line, "f", 0, 10, tf_function_call=Reference("traced-nonXla"))
    drawing.event(host, line, "g", 20, 10, tf_function_call=Reference("notTraced-nonXla"))
    assert kinds(drawing.read()) == {"f": "COMPILE", "g": "ANNOTATION"}
    drawing.event(host, line, "tf.function-graph_building", 1, 5)
    assert kinds(drawing.read())["f"] == "ANNOTATION"


def test_calls_of_jitted_functions_that_compile_are_compilation() -> None:
    # A call that misses the cache; the functions that it calls are traced, too. Then a call that
    # hits it, and a compilation outside of any call.
    drawing = Drawing()
    host = drawing.plane("/host:CPU")
    line = drawing.line(host, "python")
    for name, start, length in (
        ("PjitFunction(step)", 0, 100),
        ("PjitFunction(add)", 10, 10),
        ("trace_to_jaxpr_dynamic", 12, 5),
        ("backend_compile_and_load", 50, 20),
        ("PjitFunction(run)", 110, 10),
        ("backend_compile_and_load", 130, 20),
    ):
        drawing.event(host, line, name, start, length)
    found = kinds(drawing.read())
    assert found["PjitFunction(step)"] == "COMPILE"
    assert found["PjitFunction(add)"] == found["PjitFunction(run)"] == "ANNOTATION"


@pytest.mark.parametrize(
    ("frame", "is_input"),
    [
        ("$train.py:13 batches", True),
        ("$train.py:13 make_batch", True),
        ("$data.py:40 __next__", True),
        ("$loader.py:7 get_training_examples", True),
        ("$pipeline.py:7 data_generator", True),
        ("$builtins next", True),
        ("$queue.py:154 get", True),
        ("$queue.py:122 put", False),
        ("$train.py:20 train_batch", False),
        ("$metrics.py:5 log_batch_metrics", False),
        ("$train.py:31 run", False),
        ("$metrics.py:5 log_metrics", False),
    ],
)
def test_frames_that_make_batches_between_steps_of_jax_are_fetches(
    frame: str, *, is_input: bool
) -> None:
    drawing = Drawing()
    host = drawing.plane("/host:CPU")
    line = drawing.line(host, "python")
    for start in (0, 100_000):
        drawing.event(host, line, frame, start, 20_000)
        drawing.event(host, line, "PjitFunction(convert_element_type)", start + 15_000, 1_000)
        drawing.event(host, line, "PjitFunction(step)", start + 30_000, 50_000)
    assert (kinds(drawing.read())[frame] == "INPUT_WAIT") == is_input


@pytest.mark.parametrize(("length_ns", "is_input"), [(9_999, False), (10_000, True)])
def test_a_frame_shorter_than_ten_microseconds_fetches_nothing(
    length_ns: int, *, is_input: bool
) -> None:
    drawing = Drawing()
    host = drawing.plane("/host:CPU")
    line = drawing.line(host, "python")
    for start in (0, 100_000):
        drawing.event(host, line, "$data.py:40 __next__", start, length_ns)
        drawing.event(host, line, "PjitFunction(step)", start + 30_000, 50_000)
    assert (kinds(drawing.read())["$data.py:40 __next__"] == "INPUT_WAIT") == is_input


@pytest.mark.parametrize("inside", ["PjitFunction(step)", "np.asarray(jax.Array)"])
def test_frames_that_run_or_await_steps_are_no_fetches(inside: str) -> None:
    drawing = Drawing()
    host = drawing.plane("/host:CPU")
    line = drawing.line(host, "python")
    drawing.event(host, line, "$train.py:13 next_batch", 0, 90_000)
    drawing.event(host, line, inside, 10_000, 50_000)
    drawing.event(host, line, "PjitFunction(step)", 100_000, 50_000)
    assert kinds(drawing.read())["$train.py:13 next_batch"] == "PYTHON"


def test_an_iterator_that_names_itself_tells_more_than_next() -> None:
    drawing = Drawing()
    host = drawing.plane("/host:CPU")
    line = drawing.line(host, "python")
    for start in (0, 100_000):
        drawing.event(host, line, "$builtins next", start, 25_000)
        drawing.event(host, line, "PrefetchDatasetIterator.__next__", start + 1_000, 20_000)
        drawing.event(host, line, "PjitFunction(step)", start + 30_000, 50_000)
    found = kinds(drawing.read())
    assert found["PrefetchDatasetIterator.__next__"] == "INPUT_WAIT"
    assert found["$builtins next"] == "PYTHON"


@pytest.mark.parametrize(("wrappers", "is_input"), [(3, True), (4, False)])
def test_only_a_few_calls_lie_between_the_loop_and_what_fetches(
    wrappers: int, *, is_input: bool
) -> None:
    # Deep in a library that draws, `_draw_list_compositing_images` makes no batch.
    drawing = Drawing()
    host = drawing.plane("/host:CPU")
    line = drawing.line(host, "python")
    drawing.event(host, line, "$train.py:5 main", 0, 200_000)
    for start in (10_000, 110_000):
        for depth in range(wrappers):
            drawing.event(host, line, "$figure.py:7 save", start + depth, 30_000 - 2 * depth)
        drawing.event(host, line, "$image.py:115 _draw_list_compositing_images", start + 9, 25_000)
        drawing.event(host, line, "PjitFunction(step)", start + 40_000, 50_000)
    found = kinds(drawing.read())["$image.py:115 _draw_list_compositing_images"]
    assert (found == "INPUT_WAIT") == is_input


def test_what_a_step_fetches_while_it_is_traced_is_no_input() -> None:
    drawing = Drawing()
    host = drawing.plane("/host:CPU")
    line = drawing.line(host, "python")
    drawing.event(host, line, "PjitFunction(step)", 0, 90_000)
    drawing.event(host, line, "$builtins next", 10_000, 20_000)
    assert kinds(drawing.read())["$builtins next"] == "PYTHON"


def test_marks_of_the_tracer_are_dropped() -> None:
    drawing = Drawing()
    host = drawing.plane("/host:CPU")
    line = drawing.line(host, "tf_Compute/1")
    drawing.event(host, line, "ThreadpoolListener::Record", 0, 0)
    drawing.event(host, line, "a:Add", 1, 1)
    assert kinds(drawing.read()) == {"a:Add": "OPERATOR"}


def test_shapes_of_operators() -> None:
    drawing = Drawing()
    host = drawing.plane("/host:CPU")
    line = drawing.line(host, "tf_Compute/1")
    shape = Reference("(half[4,384,4096];half[])")
    drawing.event(host, line, "dropout/GreaterEqual:GreaterEqual", 0, 5, shape=shape)
    trace = drawing.read()
    assert trace.text(int(trace.operators.shapes[0])) == "[[4,384,4096],[]]"
    assert trace.text(int(trace.operators.dtypes[0])) == "half;half"
    assert trace.source.has_shapes is True


def test_calls_on_a_separate_line_join_their_thread() -> None:
    # Two concurrent threads; only the operation shows which one made the call.
    drawing = Drawing()
    host = drawing.plane("/host:CPU")
    drawing.plane("/device:GPU:0", device_vendor="AMD")
    for name, operation in (("py_xla_execute/1", "fusion.1"), ("py_xla_execute/2", "fusion.2")):
        line = drawing.line(host, name)
        drawing.event(host, line, "GpuExecutable::ExecuteThunks", 0, 100)
        drawing.event(host, line, operation, 10, 50)
    calls = drawing.line(host, "Host Threads/2356")
    drawing.event(
        host,
        calls,
        "hipModuleLaunchKernel",
        20,
        5,
        correlation_id=1,
        hlo_op=Reference("fusion.2"),
    )
    trace = drawing.read()
    call = row_of(trace, "hipModuleLaunchKernel")
    track = int(trace.events.track[call])
    assert trace.text(int(trace.tracks.label[track])) == "py_xla_execute/2"
    assert trace.name(int(trace.events.parent[call])) == "fusion.2"


@pytest.mark.parametrize(("contexts", "thread"), [((7, 8), "python"), ((7, 9), "main/41")])
def test_calls_inside_a_plugin_join_the_thread_that_called_it(
    contexts: tuple[int, int], thread: str
) -> None:
    drawing = Drawing()
    host = drawing.plane("/host:CPU")
    drawing.plane("/device:TPU:0", device_type_string="TPU v6 lite")
    python, plugin = drawing.line(host, "python"), drawing.line(host, "main/41")
    for start, called, entered in zip((0, 100), (7, 8), contexts, strict=True):
        drawing.event(host, python, "PjRtCApiLoadedExecutable::Execute", start, 50)
        call = {"_pt": LIBRARY_CALL, "_p": called}
        drawing.event(host, python, "PJRT_LoadedExecutable_Execute linkage", start + 5, 1, **call)
        entry = {"_ct": LIBRARY_CALL, "_c": entered}
        drawing.event(host, plugin, "PJRT_LoadedExecutable_Execute", start + 10, 30, **entry)
    drawing.event(host, plugin, "DoEnqueueProgram", 20, 10, run_id=1, device_ordinal=0)
    trace = drawing.read()
    launch = row_of(trace, "DoEnqueueProgram")
    assert trace.text(int(trace.tracks.label[trace.events.track[launch]])) == thread


def test_memory_in_use_is_the_heap_and_the_stack() -> None:
    drawing = Drawing()
    host = drawing.plane("/host:CPU")
    # An allocator without a name or device would belong to the first device.
    for index in (1, 2):
        drawing.plane(f"/device:TPU:{index}", device_type_string="TPU v4")
    line = drawing.line(host, "python", at_ns=50)
    stats = {"bytes_reserved": 100, "bytes_available": 1000, "addr": 4096}
    drawing.event(host, line, "PjitFunction(f)", 0, 1)
    drawing.event(
        host,
        line,
        "MemoryAllocation",
        10,
        0,
        index_on_host=2,
        bytes_allocated=400,
        allocation_bytes=256,
        **stats,
    )
    drawing.event(
        host,
        line,
        "MemoryDeallocation",
        20,
        0,
        allocator_name=Reference("GPU_1_bfc"),
        bytes_allocated=144,
        allocation_bytes=256,
        **stats,
    )
    drawing.event(
        host,
        line,
        "MemoryAllocation",
        30,
        0,
        allocator_name=Reference("xla_gpu_host_bfc"),
        bytes_allocated=8,
        allocation_bytes=8,
        **stats,
    )
    # Without its size, it changes nothing.
    drawing.event(
        host, line, "MemoryAllocation", 40, 0, index_on_host=2, bytes_allocated=400, **stats
    )
    trace = drawing.read()
    assert trace.memory.at_ns.tolist() == [10, 20, 30, 40]
    assert trace.memory.device.tolist() == [2, 1, -1, 2]
    assert trace.memory.allocated_bytes.tolist() == [500, 244, 108, 500]
    assert trace.memory.bytes.tolist() == [256, -256, 8, 0]
    assert trace.memory.address.tolist() == [4096] * 4
    assert trace.memory.reserved_bytes.tolist() == [-1] * 4
    assert kinds(trace) == {"PjitFunction(f)": "ANNOTATION"}
    # The allocators' limits: 144 + 100 and 400 + 100 in use, and 1000 free.
    assert {device.index: device.memory_bytes for device in trace.devices} == {1: 1244, 2: 1500}
    assert trace.source.has_memory is True
