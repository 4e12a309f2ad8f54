"""Short profiles for `big_xplane` to repeat, like those of TensorFlow's and JAX's profilers.

Lines and stats, their forms and their counts follow recorded profiles: TensorFlow 2 on V100s, and
JAX on four cores of a TPU v6e (both published with XProf). Times are round numbers; names are those
of a transformer.
"""

from __future__ import annotations

from typing import Any

from tb_perfadvisor.ingest.xspace.decode.messages import WRITING

_US = 1_000_000  # in picoseconds
_CONTEXT_TPU_LAUNCH = 12

Stats = dict[str, "int | float | str | _Shared"]


class _Shared(str):
    """A text that a plane stores once, among the names of its stats."""

    __slots__ = ()


class _Plane:
    """Adds lines and events to a plane, and numbers kinds of events and stats."""

    def __init__(self, space: Any, name: str, **stats: Any) -> None:
        self.message = space.planes.add(name=name)
        self._kinds: dict[str, int] = {}
        self._stats: dict[str, int] = {}
        self._set(self.message, stats)

    def line(self, id_: int, name: str) -> Any:
        return self.message.lines.add(id=id_, name=name, timestamp_ns=1_000_000)

    def kind(self, name: str, display: str = "", stats: Stats | None = None) -> int:
        if name not in self._kinds:
            self._kinds[name] = len(self._kinds) + 1
            entry = self.message.event_metadata[self._kinds[name]]
            entry.id, entry.name, entry.display_name = self._kinds[name], name, display
            self._set(entry, stats or {})
        return self._kinds[name]

    def event(
        self, line: Any, name: str, at_us: float, for_us: float, stats: Stats | None = None
    ) -> None:
        event = line.events.add(
            metadata_id=self.kind(name),
            offset_ps=round(at_us * _US),
            duration_ps=round(for_us * _US),
        )
        self._set(event, stats or {})

    def _id(self, name: str) -> int:
        if name not in self._stats:
            self._stats[name] = len(self._stats) + 1
            entry = self.message.stat_metadata[self._stats[name]]
            entry.id, entry.name = self._stats[name], name
        return self._stats[name]

    def _set(self, owner: Any, stats: Stats) -> None:
        for name, value in stats.items():
            stat = owner.stats.add(metadata_id=self._id(name))
            if isinstance(value, _Shared):
                stat.ref_value = self._id(str(value))
            elif isinstance(value, str):
                stat.str_value = value
            elif isinstance(value, float):
                stat.double_value = value
            elif value < 2**63:
                stat.int64_value = value
            else:
                stat.uint64_value = value


# What a transformer layer runs: operator, kernel, time in microseconds, launch.
_LAYER = (
    (
        "attention/query/einsum/Einsum:Einsum",
        "volta_fp16_s884gemm_fp16_128x128_ldg8_f2f_nn",
        31,
        "regs:122 static_shared:32768 dynamic_shared:0 grid:8,12,1 block:256,1,1 occ_pct:25",
    ),
    (
        "attention/Softmax:Softmax",
        "void (anonymous namespace)::SoftmaxForward<Eigen::half, float, 8>(Eigen::half*, int)",
        18,
        "regs:32 static_shared:0 dynamic_shared:4096 grid:6144,1,1 block:128,1,1 occ_pct:100",
    ),
    (
        "attention/value/einsum/Einsum:Einsum",
        "volta_sgemm_128x64_nn",
        52,
        "regs:126 static_shared:16384 dynamic_shared:0 grid:8,24,1 block:128,1,1 occ_pct:25",
    ),
    (
        "output/dropout/GreaterEqual:GreaterEqual",
        "void Eigen::internal::EigenMetaKernel<Eigen::TensorEvaluator<Eigen::TensorAssignOp<"
        "Eigen::TensorMap<Eigen::Tensor<bool, 1, 1, int>, 16, Eigen::MakePointer>>>>(int)",
        9,
        "regs:16 static_shared:0 dynamic_shared:0 grid:160,1,1 block:1024,1,1 occ_pct:100",
    ),
    (
        "output/LayerNorm/batchnorm/mul:Mul",
        "Mul_GPU_DT_HALF_DT_HALF_kernel",
        7,
        "regs:20 static_shared:0 dynamic_shared:0 grid:768,1,1 block:256,1,1 occ_pct:100",
    ),
)
_LAYERS = 24


def tensorflow_on_gpu() -> Any:
    """Two training steps of TensorFlow on one V100; a step is 24 layers of five kernels."""
    space = WRITING.XSpace(hostnames=["host-gpu"])
    host = _Plane(space, "/host:CPU")
    gpu = _Plane(
        space,
        "/device:GPU:0",
        clock_rate=1_530_000,
        core_count=80,
        memory_bandwidth=898_048_000_000,
        memory_size=16_945_512_448,
        compute_cap_major=7,
        compute_cap_minor=0,
        device_vendor="Nvidia",
    )
    python = host.line(1_630_881_670, "python3")
    executor = host.line(2_367_906_686, "tf_gpu_private_0/2367906686")
    loader = host.line(3_781_665_406, "tf_data_iterator_resource/3781665406")
    compute, copies = gpu.line(134, "Stream #134(Compute)"), gpu.line(135, "Stream #135(MemcpyH2D)")
    derived = (
        gpu.line(-559038734, "TensorFlow Ops"),
        gpu.line(-559038735, "TensorFlow Name Scope"),
    )
    step_line = gpu.line(-559038737, "Steps")
    for step in range(2):
        at = step * 5000.0
        _tensorflow_host_step(host, python, loader, step, at)
        host.event(
            executor,
            "ExecutorState::Process",
            at + 140,
            4500,
            {"id": 7 + step, "iter_num": step, "_ct": 2, "_c": 1000 + step, "group_id": step},
        )
        copy: Stats = {"correlation_id": 1 + 1000 * step, "context_id": _Shared("$$5")}
        details: Stats = {"memcpy_details": "kind_src:pinned kind_dst:device size:6144 async:1"}
        host.event(executor, "cuMemcpyHtoDAsync_v2", at + 150, 4, copy | details)
        gpu.event(copies, "MemcpyH2D", at + 160, 3, copy | details | {"group_id": step})
        end = _tensorflow_layers(host, executor, gpu, (compute, *derived), step, at + 200)
        stats: Stats = {"group_id": step, "step_name": str(step)}
        gpu.event(step_line, str(step), at + 160, end - at - 160, stats)
    return space


def _tensorflow_host_step(host: _Plane, python: Any, loader: Any, step: int, at: float) -> None:
    """The step marker, the call of the step function, and the input pipeline."""
    host.event(python, "train", at, 4900, {"step_num": step, "_r": 1, "group_id": step})
    host.event(
        python,
        "IteratorGetNextOp::DoCompute",
        at + 10,
        60,
        {"id": 90, "iter_num": step, "group_id": step},
    )
    call: Stats = {"eager_op": _Shared("__inference_train_step_318906"), "is_func": 1}
    host.event(python, "EagerExecute", at + 90, 4700, call)
    host.event(python, "EagerLocalExecute: __inference_train_step_318906", at + 95, 4690)
    context: Stats = {"id": 7 + step, "_r": 1, "_pt": 2, "_p": 1000 + step, "group_id": step}
    host.event(python, "FunctionRun", at + 120, 20, context)
    chain = "Iterator::Root::Prefetch::ParallelMapV2::ParallelInterleaveV4[0]::TFRecord"
    for slot in range(12):
        host.event(
            loader,
            chain,
            at + 300 * slot,
            210,
            {"id": 600 + slot, "parent_id": 500, "element_id": slot, "name": _Shared("TFRecord")},
        )


def _tensorflow_layers(
    host: _Plane, executor: Any, gpu: _Plane, lines: tuple[Any, ...], step: int, at: float
) -> float:
    """The operators of a step, their launches and kernels; returns when the last one ends."""
    compute, ops, scopes = lines
    free = at + 20
    for layer in range(_LAYERS):
        layer_at = free
        for place, (op, kernel, duration, launch) in enumerate(_LAYER):
            called = at + 180 * layer + 35 * place
            name = f"model/encoder/layer_{layer}/{op}"
            type_ = op.rpartition(":")[2]
            number = 2 + 1000 * step + len(_LAYER) * layer + place
            shape = _Shared("(half[4,384,1024];half[1024,1024])")
            grouped: Stats = {"group_id": step, "is_eager": 0}
            host.event(executor, name, called, 30, {"shape": shape} | grouped)
            host.event(executor, "MemoryAllocation", called + 3, 0, _allocation(place, name))
            calls: Stats = {"correlation_id": number, "context_id": _Shared("$$5")}
            host.event(
                executor,
                "cuLaunchKernel",
                called + 8,
                6,
                calls | {"kernel_details": _Shared(launch), "tf_op": _Shared(name)} | grouped,
            )
            host.event(executor, "MemoryDeallocation", called + 20, 0, _allocation(0, name))
            propagated: Stats = {
                "id": 7 + step,
                "kernel_name": _Shared(name.rpartition(":")[0]),
                "num_output_edges": 2,
                "num_output_control_edges": 0,
            }
            host.event(executor, "ExecutorPropagateOutputs", called + 31, 2, propagated | grouped)
            start = max(free, called + 16)
            gpu.event(
                compute,
                kernel,
                start,
                duration,
                calls
                | {"kernel_details": _Shared(launch), "tf_op": _Shared(name), "shape": shape}
                | {"theoretical_occupancy_pct": 25.0, "occupancy_min_grid_size": 160}
                | grouped,
            )
            gpu.event(ops, name, start, duration, {"group_id": step, "tf_op": _Shared(type_)})
            gpu.event(scopes, op.partition("/")[0], start, duration, {"group_id": step})
            free = start + duration
        gpu.event(scopes, f"layer_{layer}", layer_at, free - layer_at, {"group_id": step})
    gpu.event(scopes, "model", at, free - at, {"group_id": step})
    return free


def _allocation(place: int, name: str) -> Stats:
    in_use = 4_821_820_672 + 6144 * place
    return {
        "allocator_name": _Shared("GPU_0_bfc"),
        "bytes_reserved": 0,
        "bytes_allocated": in_use,
        "bytes_available": 15_477_102_080 - in_use,
        "fragmentation": 0.0100371,
        "peak_bytes_in_use": 4_928_769_280,
        "requested_bytes": 6144,
        "allocation_bytes": 6144,
        "addr": 139_813_459_528_960 + 6144 * place,
        "tf_op": _Shared(name),
        "region_type": _Shared("dynamic"),
        "data_type": 1,
        "shape": _Shared("[4,384,1024]"),
    }


_CORES = 4
_OPERATIONS = 6000
_TILES = "{1,0:T(8,128)(2,1)S(1)}"
# hlo_category, the rest of the operation's text, time in microseconds.
_TPU_OPERATIONS = (
    (
        "convolution fusion",
        "bf16[{m},{n}]{t} fusion(bf16[{m},1024]{t} %fusion.{i}, bf16[1024,{n}]{t} %param.{i}, "
        "f32[{n}]{{0:T(1024)}} %copy.{i}), kind=kOutput, calls=%fused_computation.{i}, "
        'metadata={{op_name="jit(train_step)/jvp(Transformer)/layer_{layer}/mlp/dot_general" '
        'source_file="/home/user/model/transformer.py" source_line=218}}, backend_config='
        '{{"flag_configs":[],"window_config":{{"kernel_window_bounds":["8","16"],'
        '"output_window_bounds":["32","16"],"input_window_bounds":["32","8"],'
        '"estimated_cycles":"184320","iteration_bounds":["4","2","1"]}},"scoped_memory_configs":'
        '[],"used_scoped_memory_configs":[{{"memory_space":"1","offset":"0","size":"524288"}}]}}',
        12,
    ),
    (
        "loop fusion",
        "bf16[{m},{n}]{t} fusion(bf16[{m},{n}]{t} %fusion.{i}, f32[{m}]{{0:T(1024)}} %reduce.{i}),"
        " kind=kLoop, calls=%fused_computation.{i}, "
        'metadata={{op_name="jit(train_step)/jvp(Transformer)/layer_{layer}/norm/mul" '
        'source_file="/home/user/model/transformer.py" source_line=97}}',
        3,
    ),
    (
        "copy-done",
        "bf16[{m},{n}]{t} copy-done((bf16[{m},{n}]{t}, bf16[{m},{n}]{{1,0:T(8,128)(2,1)}}, "
        "u32[]{{:S(2)}}) %copy-start.{i})",
        1,
    ),
    (
        "all-reduce",
        "bf16[{n}]{{0:T(1024)}} all-reduce(bf16[{n}]{{0:T(1024)}} %fusion.{i}), channel_id={i}, "
        "replica_groups=[1,4]<=[4], use_global_device_ids=true, to_apply=%add.{i}, "
        'metadata={{op_name="jit(train_step)/transpose(jvp(Transformer))/psum" '
        'source_file="/home/user/model/train.py" source_line=61}}',
        4,
    ),
)
_TPU_PROGRAM = 12_190_760_917_235_803_885


def jax_on_tpu() -> Any:
    """A training step of JAX on four cores, with 6000 distinct operations on each."""
    space = WRITING.XSpace(hostnames=["host-tpu"])
    host = _Plane(space, "/host:CPU", process_id=4711)
    step_us = sum(_TPU_OPERATIONS[i % 4][2] for i in range(_OPERATIONS)) + 20.0
    _jax_host_step(host, step_us)
    for core in range(_CORES):
        _tpu_core(space, core)
    return space


def _jax_host_step(host: _Plane, step_us: float) -> None:
    python = host.line(3_116_817, "python")
    launcher = host.line(3_118_850, "EventFDAsyncWorker/3118850")
    host.event(python, "train", 0, step_us, {"step_num": 1, "_r": 1})
    frames = ("$train.py:60 step", "$tree_util.py:87 tree_flatten", "$builtins isinstance")
    for slot in range(3000):
        depth = slot % 3
        host.event(python, frames[depth], 5 + 6 * (slot // 3) + depth, 5 - depth)
    host.event(python, "PjitFunction(train_step)", 6100, 700)
    for core in range(_CORES):
        launch: Stats = {"run_id": 3, "queue_id": 0, "device_ordinal": core, "core_type": 0}
        context: Stats = {"_pt": _CONTEXT_TPU_LAUNCH, "_p": 100 + core}
        host.event(launcher, "DoEnqueueProgram", 10 + core, 0.5, launch | context)


def _tpu_core(space: Any, core: int) -> None:
    plane = _Plane(
        space,
        f"/device:TPU:{core}",
        device_type_string="TPU v6 Lite",
        peak_teraflops_per_second=918.0,
        peak_hbm_bw_gigabytes_per_second=1638.0,
        has_megacore=0,
    )
    steps, modules = plane.line(1, "Steps"), plane.line(2, "XLA Modules")
    operations, waits = plane.line(3, "XLA Ops"), plane.line(6, "XLA TraceMe")
    at = 20.0
    for number in range(_OPERATIONS):
        category, text, duration = _TPU_OPERATIONS[number % 4]
        opcode = category if "-" in category else "fusion"
        rows, columns, layer = 512 + 8 * (number % 7), 1024 + 128 * (number % 5), number % 48
        body = text.format(m=rows, n=columns, t=_TILES, i=number, layer=layer)
        name = f"%{opcode}.{number} = {body}"
        plane.kind(name, f"{opcode}.{number}", _operation_stats(number, category, layer))
        stats: Stats = {
            "device_offset_ps": round(at * _US),
            "device_duration_ps": round(duration * _US),
        }
        plane.event(operations, name, at, duration, stats)
        if number % 20 == 0:
            plane.event(waits, "dependency-wait", at, 0.1)
        at += duration
    run: Stats = {"run_id": 3, "replica_id": core, "queue_id": 0, "core_type": 0}
    context: Stats = {"_ct": _CONTEXT_TPU_LAUNCH, "_c": 100 + core}
    plane.event(modules, f"jit_train_step({_TPU_PROGRAM})", 20, at - 20, run | context)
    plane.event(steps, "1", 20, at - 20, {"group_id": 1, "step_name": "1"})


def _operation_stats(number: int, category: str, layer: int) -> Stats:
    return {
        "hlo_category": _Shared(category),
        "program_id": _TPU_PROGRAM,
        "symbol_id": number,
        "flops": 1_342_177_280,
        "model_flops": 1_342_177_280,
        "bytes_accessed": 10_737_418,
        "raw_bytes_accessed": 10_737_418,
        "source": _Shared("/home/user/model/transformer.py:218"),
        "source_stack": _Shared(
            "/home/user/model/transformer.py:218:12\n/home/user/model/train.py:60:8\n"
            "/home/user/model/train.py:143:4"
        ),
        "shape_with_layout": f"bf16[{512 + 8 * (number % 7)},{1024 + 128 * (number % 5)}]{_TILES}",
        "tf_op": _Shared(f"jit(train_step)/jvp(Transformer)/layer_{layer}/mlp/dot_general:"),
    }
