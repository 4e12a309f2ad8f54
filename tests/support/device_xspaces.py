"""One small XSpace of a GPU and one of a TPU."""

from __future__ import annotations

from tests.support.xspaces import Drawing, Reference

# Texts from the TPU v6e profile of XProf's tests (tpu_inference_2), with its shapes and layouts.
COPY_DONE_IN = (
    "%copy-done.2 = f32[5,1024,1024,256]{3,2,1,0:T(8,128)} copy-done("
    "(f32[5,1024,1024,256]{3,2,1,0:T(8,128)}, f32[5,1024,1024,256]{3,2,1,0:T(8,128)S(5)}, "
    "u32[]{:S(2)}) %copy-start.2)"
)
COPY_START_OUT = (
    "%copy-start.1 = (f32[5,1024,1024,256]{3,2,1,0:T(8,128)S(5)}, "
    "f32[5,1024,1024,256]{3,2,1,0:T(8,128)}, u32[]{:S(2)}) copy-start("
    "f32[5,1024,1024,256]{3,2,1,0:T(8,128)} %broadcast_add_fusion.1)"
)
ALL_REDUCE = (
    "%all-reduce = f32[5,1024,1024,256]{3,2,1,0:T(8,128)} all-reduce("
    "f32[5,1024,1024,256]{3,2,1,0:T(8,128)} %bitcast), channel_id=1, "
    "replica_groups=[4,2]<=[2,4]T(1,0), use_global_device_ids=true, to_apply=%region"
)


def gpu_xspace() -> Drawing:
    drawing = Drawing()
    host = drawing.plane("/host:CPU")
    thread = drawing.line(host, "python")
    drawing.event(host, thread, "cuLaunchKernel", 0, 5, correlation_id=11)
    drawing.event(host, thread, "hipMemcpyHtoDAsync", 6, 5, correlation_id=12)
    gpu = drawing.plane("/device:GPU:1", core_count=108, compute_cap_major=8, compute_cap_minor=0)
    stream = drawing.line(gpu, "Stream #16(Kernel)", id_=16)
    drawing.event(
        gpu,
        stream,
        "loop_fusion",
        10,
        20,
        correlation_id=11,
        kernel_details=Reference(
            "regs:40 static_shared:1024 dynamic_shared:512 grid:16,2,1 block:64,2,1 occ_pct:75"
        ),
        hlo_op=Reference("loop_fusion"),
        hlo_module=Reference("jit_step"),
        program_id=47,
    )
    drawing.event(gpu, stream, "__amd_rocclr_copyBuffer.kd", 40, 5, correlation_id=12)
    drawing.event(gpu, stream, "ncclDevKernel_AllReduce_Sum_f32_RING_LL", 50, 5)
    drawing.event(gpu, stream, "Memset 4", 60, 1)
    drawing.event(
        gpu,
        stream,
        "MemcpyD2H",
        70,
        2,
        memcpy_details=Reference("kind_src:device kind_dst:pageable size:4096 dest:0 async:1"),
    )
    drawing.event(gpu, drawing.line(gpu, "XLA Ops"), "loop_fusion", 10, 20)
    drawing.event(gpu, drawing.line(gpu, "XLA Modules"), "jit_step(47)", 10, 60)
    drawing.event(gpu, drawing.line(gpu, "Steps"), "3", 10, 60)
    drawing.event(gpu, drawing.line(gpu, "TensorFlow Name Scope"), "model", 10, 60)
    return drawing


def tpu_xspace() -> Drawing:
    drawing = Drawing()
    tpu = drawing.plane(
        "/device:TPU:3",
        device_type_string="TPU v6 Lite",
        peak_teraflops_per_second=918.0,
        peak_hbm_bw_gigabytes_per_second=1638.0,
    )
    modules = drawing.line(tpu, "XLA Modules")
    drawing.event(tpu, modules, "jit_f(77)", 100, 900, _ct=12, _c=5)
    operations = drawing.line(tpu, "XLA Ops")
    shared = {"program_id": 77, "flops": 4096, "bytes_accessed": 512, "source": "train.py:37"}
    drawing.event(
        tpu,
        operations,
        "%while.1 = (f32[8]{0}) while((f32[8]{0}) %tuple), condition=%c, body=%b",
        100,
        800,
        display="while.1",
        shared={"hlo_category": "while", "program_id": 77},
    )
    for start in (110, 310):
        drawing.event(
            tpu,
            operations,
            "%dot.1 = f32[8,64]{1,0} dot(bf16[8,32]{1,0} %a, bf16[32,64]{1,0} %b)",
            start,
            100,
            display="dot.1",
            shared={"hlo_category": "convolution", **shared},
        )
    drawing.event(tpu, operations, ALL_REDUCE, 500, 50, display="all-reduce")
    drawing.event(tpu, drawing.line(tpu, "Async XLA Ops"), "x", 100, 500, display="async-copy")
    drawing.event(tpu, drawing.line(tpu, "XLA TraceMe"), "barrier-cores", 100, 5)
    drawing.event(tpu, drawing.line(tpu, "Steps"), "12", 100, 900)
    drawing.event(tpu, drawing.line(tpu, "_counters_"), "MXU", 100, 900)
    sparse = drawing.plane("/device:TPU:3 SparseCore 0")
    drawing.event(sparse, drawing.line(sparse, "XLA Ops"), "gather", 100, 900)
    host = drawing.plane("/host:CPU")
    drawing.event(
        host, drawing.line(host, "main"), "DoEnqueueProgram", 50, 10, _pt=12, _p=5, run_id=4
    )
    return drawing
