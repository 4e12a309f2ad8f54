from __future__ import annotations

import math

import pytest

from tb_perfadvisor.ingest.xspace.interpret.hlo.operation import parse_operation
from tb_perfadvisor.trace import (
    CopyDirection,
    EventKind,
    KernelFamily,
    Precision,
    TrackKind,
)
from tests.support.device_xspaces import ALL_REDUCE, COPY_DONE_IN, COPY_START_OUT, tpu_xspace
from tests.support.xspaces import Drawing, row_of

# 5 x 1024 x 1024 x 256 x 4 bytes; XProf's bytes_accessed of the copies says the same.
ARRAY_BYTES = 5368709120


def test_copy_from_host_memory() -> None:
    operation = parse_operation(COPY_DONE_IN, category="copy-done")
    assert operation.name == "copy-done.2"
    assert operation.kind == EventKind.COPY
    assert operation.copy_direction == CopyDirection.HOST_TO_DEVICE
    assert operation.copy_bytes == ARRAY_BYTES


def test_start_of_a_copy_to_host_memory_moves_no_bytes() -> None:
    operation = parse_operation(COPY_START_OUT, category="copy-start")
    assert operation.kind == EventKind.COPY
    assert operation.copy_direction == CopyDirection.DEVICE_TO_HOST
    assert operation.copy_bytes == -1


def test_a_collective() -> None:
    operation = parse_operation(ALL_REDUCE, category="all-reduce")
    assert (operation.kind, operation.collective) == (EventKind.COLLECTIVE, "all-reduce")
    assert operation.collective_bytes == ARRAY_BYTES
    assert operation.group_size == 2
    assert operation.collective_dtype == "f32"


def test_a_reduction_sends_what_it_reads() -> None:
    # As libtpu 0.0.52 writes it for a TPU7x: it sums in 32 bits, and rounds the result.
    text = (
        "%all-reduce = bf16[4096,1024]{1,0:T(8,128)(2,1)S(1)} all-reduce(f32[4096,1024]"
        "{1,0:T(8,128)S(1)} %fusion.7), channel_id=1, replica_groups={{0,1,2,3}}, "
        "use_global_device_ids=true, to_apply=%region_0.0"
    )
    operation = parse_operation(text)
    assert (operation.collective_dtype, operation.collective_bytes) == ("f32", 16_777_216)


def test_an_asynchronous_collective_sends_its_bytes_once() -> None:
    start = (
        "%all-reduce-start.1 = f32[1024,256]{1,0} all-reduce-start(f32[1024,256]{1,0} %p.1),"
        " replica_groups={{0,1}}"
    )
    done = (
        "%all-reduce-done.1 = f32[1024,256]{1,0} all-reduce-done(f32[1024,256]{1,0}"
        " %all-reduce-start.1)"
    )
    assert parse_operation(start).collective_bytes == -1
    assert parse_operation(done).collective_bytes == 1024 * 256 * 4


def test_the_size_of_a_collective_without_shapes_is_unknown() -> None:
    assert parse_operation("all-reduce.3", category="all-reduce").collective_bytes == -1
    done = "%all-reduce-done.3 = token[] all-reduce-done(token[] %all-reduce-start.3)"
    assert parse_operation(done).collective_bytes == -1


def test_a_size_beyond_all_memory_is_unknown() -> None:
    text = "%all-reduce = u8[{},{}]{{1,0}} all-reduce(u8[8]{{0}} %p.1), replica_groups={{{{0,1}}}}"
    largest = parse_operation(text.format(2**31, 2**31 - 1))
    assert largest.collective_bytes == 2**62 - 2**31
    beyond = parse_operation(text.format(2**31, 2**31))
    assert beyond.collective_bytes == 8  # of the operand


@pytest.mark.parametrize(
    ("groups", "size", "neighbors"),
    [
        # As libtpu 0.0.52 writes it for four chips.
        ("replica_groups=mesh['axis_0'=4] {'axis_0'}", 4, 2),
        ("replica_groups=mesh['axis_0'=2,'axis_1'=8] {'axis_1'}", 8, 2),
        # An axis of two chips has one link.
        ("replica_groups=mesh['axis_0'=2,'axis_1'=8] {'axis_0'}", 2, 1),
        ("replica_groups=mesh['x'=2,'y'=4,'z'=16] {'x','z'}", 32, 3),
        # Half of an axis of eight.
        ("replica_groups=mesh['x'=8] {'x':(2)4}", 4, 2),
        ("replica_groups=mesh['x'=2,'y'=2], device_ids=([0,2,1,3]) {'y'}", 2, 1),
        ("replica_groups=mesh['x'=8] {'other'}", -1, -1),
        ("replica_groups={{0,1,2},{3,4,5}}", 3, 2),
        ("replica_groups=[4,2]<=[8]", 2, 1),
        # Both last axes of a mesh of 2 x 4 x 8, and its first one.
        ("replica_groups=[2,32]<=[2,4,8]", 32, 4),
        ("replica_groups=[32,2]<=[2,4,8]T(1,2,0)", 2, 1),
        # Part of an axis.
        ("replica_groups=[4,4]<=[2,8]", 4, 2),
        ("replica_groups={}", -1, -1),
    ],
)
def test_size_of_a_group(groups: str, size: int, neighbors: int) -> None:
    operation = parse_operation(
        "%all-reduce.1 = f32[1024]{0:T(1024)} all-reduce(f32[1024]{0:T(1024)} %x), channel_id=1, "
        f"{groups}, use_global_device_ids=true, to_apply=%add"
    )
    assert (operation.group_size, operation.neighbors) == (size, neighbors)


@pytest.mark.parametrize(
    ("groups", "names", "members"),
    [
        ("replica_groups=mesh['data'=2,'model'=4] {'model'}", "model", ""),
        ("replica_groups=mesh['x'=2,'y'=4,'z'=16] {'x','z'}", "x,z", ""),
        ("replica_groups=mesh['x'=8] {'x':(2)4}", "x", ""),
        ("replica_groups={{0,1,2},{3,4,5}}", "", "{{0,1,2},{3,4,5}}"),
        ("replica_groups=[32,2]<=[2,4,8]T(1,2,0)", "", "[32,2]<=[2,4,8]T(1,2,0)"),
        ("replica_groups={}", "", ""),
    ],
)
def test_names_and_members_of_a_group(groups: str, names: str, members: str) -> None:
    operation = parse_operation(
        f"%all-reduce.1 = f32[1024] all-reduce(f32[1024] %x), channel_id=1, {groups}, to_apply=%add"
    )
    assert (operation.group_names, operation.group_members) == (names, members)


def test_long_lists_of_groups_are_shortened() -> None:
    pairs = ",".join(f"{{{number},{number + 1}}}" for number in range(0, 100, 2))
    operation = parse_operation(
        f"%all-reduce.1 = f32[8] all-reduce(f32[8] %x), replica_groups={{{pairs}}}"
    )
    assert len(operation.group_members) == 80
    assert operation.group_members.endswith("…")


def test_the_wait_for_a_collective_has_the_group_of_its_start() -> None:
    drawing = Drawing()
    tpu = drawing.plane("/device:TPU:0", device_type_string="TPU v6 Lite")
    line = drawing.line(tpu, "XLA Ops")
    array = "f32[1024]{0:T(1024)}"
    for number, text in enumerate(
        (
            f"%all-reduce-start.1 = {array} all-reduce-start({array} %x), channel_id=1, "
            "replica_groups=mesh['axis_0'=4] {'axis_0'}, to_apply=%add",
            f"%all-reduce-done.1 = {array} all-reduce-done({array} %all-reduce-start.1)",
        )
    ):
        name = text.partition(" = ")[0].lstrip("%")
        drawing.event(tpu, line, text, 10 * number, 5, display=name)
    trace = drawing.read()
    assert trace.collectives.group_size.tolist() == [4, 4]
    assert trace.collectives.neighbors.tolist() == [2, 2]


def test_an_operation_may_have_a_shape_and_no_text() -> None:
    drawing = Drawing()
    tpu = drawing.plane("/device:TPU:0", device_type_string="TPU v4")
    line = drawing.line(tpu, "XLA Ops")
    stats = {"hlo_category": "all-reduce", "shape_with_layout": "f32[8,128]{1,0}"}
    drawing.event(tpu, line, "all-reduce.1", 0, 5, shared=stats)
    drawing.event(tpu, line, "all-reduce.2", 10, 5, shared={"hlo_category": "all-reduce"})
    assert drawing.read().collectives.size_bytes.tolist() == [8 * 128 * 4, -1]


# Recorded on a TPU v5 (XProf's table of a training).
PREFETCH_DONE = (
    "%copy-done.5 = bf16[1,2048,7168]{2,1,0:T(8,128)(2,1)S(1)} copy-done((bf16[1,2048,7168]"
    "{2,1,0:T(8,128)(2,1)S(1)}, bf16[1,2048,7168]{2,1,0:T(8,128)(2,1)}, u32[]{:S(2)}) "
    "%copy-start.5)"
)
PREFETCH_START = (
    "%copy-start.7 = (bf16[1,2048,2048]{1,2,0:T(8,128)(2,1)S(1)}, bf16[1,2048,2048]"
    "{1,2,0:T(8,128)(2,1)}, u32[]{:S(2)}) copy-start(bf16[1,2048,2048]{1,2,0:T(8,128)(2,1)} %x)"
)
RELAYOUT = (
    "%copy.379 = bf16[1,2048,4,512]{3,1,2,0:T(8,128)(2,1)} copy(bf16[1,2048,4,512]"
    "{1,3,0,2:T(8,128)(2,1)} %all-to-all.1)"
)


@pytest.mark.parametrize("text", [PREFETCH_DONE, PREFETCH_START])
def test_copies_to_memory_on_the_chip_are_no_transfers(text: str) -> None:
    # XProf counts them as compute, too.
    operation = parse_operation(text)
    assert (operation.kind, operation.precision) == (EventKind.KERNEL, Precision.UNKNOWN)


def test_a_copy_to_another_layout_is_work_of_the_core() -> None:
    operation = parse_operation(RELAYOUT, category="data formatting")
    assert (operation.kind, operation.family) == (EventKind.KERNEL, KernelFamily.LAYOUT)


def test_a_copy_with_the_same_layout_stays_a_copy() -> None:
    text = "%copy.2 = f32[8,128]{1,0:T(8,128)} copy(f32[8,128]{1,0:T(8,128)} %x)"
    operation = parse_operation(text, category="copy")
    assert operation.kind == EventKind.COPY
    assert operation.copy_direction == CopyDirection.DEVICE_TO_DEVICE


def test_a_slice_of_an_all_reduce_is_a_reduce_scatter() -> None:
    # As recorded on a TPU v5.
    operation = parse_operation(
        "%fusion.635 = bf16[512,7168]{1,0:T(8,128)(2,1)} fusion(bf16[2048,7168]{1,0:T(8,128)(2,1)}"
        " %get-tuple-element.1182), kind=kCustom, calls=%all-reduce-scatter.clone",
        category="all-reduce-scatter fusion",
    )
    assert (operation.kind, operation.collective) == (EventKind.COLLECTIVE, "reduce-scatter")
    assert operation.collective_bytes == 2048 * 7168 * 2


@pytest.mark.parametrize(
    ("text", "category", "family", "precision"),
    [
        # Inputs of 16 bits, result of 32: the inputs decide.
        (
            "%dot.1 = f32[8,64]{1,0} dot(bf16[8,32]{1,0} %a, bf16[32,64]{1,0} %b), dims",
            "",
            KernelFamily.MATMUL,
            Precision.BITS_16,
        ),
        (
            "%convolution.7 = f32[128,256]{1,0} convolution(bf16[128,512]{1,0} %a, "
            "bf16[512,256]{1,0} %b), dim_labels=bf_io->bf",
            "convolution",
            KernelFamily.MATMUL,
            Precision.BITS_16,
        ),
        (
            "%convolution.9 = f32[8,56,56,64]{3,2,1,0} convolution(f32[8,56,56,64]{3,2,1,0} %a, "
            "f32[3,3,64,64]{3,2,1,0} %b), window={size=3x3}, dim_labels=b01f_01io->b01f",
            "convolution",
            KernelFamily.CONVOLUTION,
            Precision.BITS_32,
        ),
        (
            "%fusion.3 = s32[8,64]{1,0} fusion(s8[8,32]{1,0} %a, s8[32,64]{1,0} %b), kind=kOutput",
            "convolution fusion",
            KernelFamily.MATMUL,
            Precision.BITS_8,
        ),
        (
            "%fusion.4 = f32[8,64]{1,0} fusion(f8e4m3fn[8,32]{1,0} %a, f8e4m3fn[32,64]{1,0} %b, "
            "bf16[64]{0} %bias)",
            "convolution fusion",
            KernelFamily.MATMUL,
            Precision.BITS_8,
        ),
        # Weights stored in 8 bits are widened before they are multiplied.
        (
            "%fusion.5 = f32[8,64]{1,0} fusion(bf16[8,32]{1,0} %a, f8e4m3fn[32,64]{1,0} %b)",
            "convolution fusion",
            KernelFamily.MATMUL,
            Precision.BITS_16,
        ),
        # Random bits for dropout, fused into a product of 16-bit arrays.
        (
            "%fusion.6 = bf16[8,64]{1,0} fusion(bf16[8,32]{1,0} %a, bf16[32,64]{1,0} %b, "
            "u8[8,32]{1,0} %bits)",
            "convolution fusion",
            KernelFamily.MATMUL,
            Precision.BITS_16,
        ),
        # A product of 8-bit arrays, to which a 16-bit array is added.
        (
            "%fusion.9 = bf16[8,64]{1,0} fusion(f8e4m3fn[8,32]{1,0} %a, f8e4m3fn[32,64]{1,0} %b, "
            "bf16[8,64]{1,0} %residual)",
            "convolution fusion",
            KernelFamily.MATMUL,
            Precision.BITS_8,
        ),
        # Unsigned bytes are multiplied in 8 bits; indices in 32 bits next to them are no factor.
        (
            "%fusion.7 = u32[8,64]{1,0} fusion(u8[8,32]{1,0} %a, u8[32,64]{1,0} %b), kind=kOutput",
            "convolution fusion",
            KernelFamily.MATMUL,
            Precision.BITS_8,
        ),
        (
            "%fusion.8 = f32[8,64]{1,0} fusion(f32[8,32]{1,0} %a, f32[32,64]{1,0} %b, "
            "u32[8]{0} %rows)",
            "convolution fusion",
            KernelFamily.MATMUL,
            Precision.BITS_32,
        ),
        # Not a contraction: the result decides.
        (
            "%add_fusion = bf16[8,64]{1,0} fusion(f32[8,64]{1,0} %a), kind=kLoop",
            "loop fusion",
            KernelFamily.ELEMENTWISE,
            Precision.BITS_16,
        ),
        (
            "%compare.2 = pred[8]{0} compare(f32[8]{0} %a, f32[8]{0} %b), direction=LT",
            "non-fusion elementwise",
            KernelFamily.ELEMENTWISE,
            Precision.UNKNOWN,
        ),
        (
            "%transpose.2 = f32[8,4]{1,0} transpose(f32[4,8]{1,0} %a), dimensions={1,0}",
            "data formatting",
            KernelFamily.LAYOUT,
            Precision.BITS_32,
        ),
        (
            "%reduce.2 = f64[] reduce(f64[4]{0} %a)",
            "reduce",
            KernelFamily.REDUCTION,
            Precision.BITS_64,
        ),
        # From JAX on MI300X (TraceLens): input fusions are named after what they do.
        (
            "%input_transpose_fusion.1 = bf16[16,199680]{1,0} fusion("
            "bf16[1,32,60,104,16]{4,3,2,1,0} %param), kind=kInput",
            "input fusion",
            KernelFamily.LAYOUT,
            Precision.BITS_16,
        ),
        (
            "%cudnn-conv.1 = (bf16[1,5120,34,31,53]{4,3,2,1,0}, u8[7150336]{0}) custom-call("
            "bf16[1,16,32,60,104]{4,3,2,1,0} %a, bf16[5120,16,1,2,2]{4,3,2,1,0} %b), "
            'custom_call_target="__cudnn$convForward"',
            "custom-call",
            KernelFamily.CONVOLUTION,
            Precision.BITS_16,
        ),
        ("fusion.12", "", KernelFamily.OTHER, Precision.UNKNOWN),
    ],
)
def test_family_and_precision(
    text: str, category: str, family: KernelFamily, precision: Precision
) -> None:
    operation = parse_operation(text, category=category)
    assert operation.kind == EventKind.KERNEL
    assert (operation.family, operation.precision) == (family, precision)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("%all-gather-done.3 = f32[8]{0} all-gather-done((f32[4], f32[8]) %s)", "COLLECTIVE"),
        ("%reduce-scatter.1 = f32[4]{0} reduce-scatter(f32[8]{0} %a)", "COLLECTIVE"),
        ("%infeed.1 = ((f32[8]), token[]) infeed(token[] %t)", "INFEED_WAIT"),
        ("%outfeed.1 = token[] outfeed(f32[8] %a, token[] %t)", "INFEED_WAIT"),
        ("%send-done.2 = token[] send-done((f32[8]) %s), is_host_transfer=true", "COPY"),
        ("%recv-done.2 = (f32[8], token[]) recv-done((f32[8]) %s)", "COLLECTIVE"),
        # A plain opcode is more reliable than a name from a fusion pass.
        ("%all-reduce-scatter-like = f32[8] add(f32[8] %a)", "KERNEL"),
        ("%all-reduce.9 = f32[8] fusion(f32[8] %a), kind=kCustom", "COLLECTIVE"),
    ],
)
def test_kinds_of_operations(text: str, kind: str) -> None:
    assert parse_operation(text).kind.name == kind


def test_matrix_unit_counter_is_weighted_by_time() -> None:
    drawing = tpu_xspace()
    assert drawing.read().devices[0].matrix_unit_use is None  # a sample without information
    tpu = drawing.plane("/device:TPU:5")
    counters = drawing.line(tpu, "_counters_")
    drawing.event(tpu, counters, "MXU", 100, 900, **{"% util": 20})
    drawing.event(tpu, counters, "MXU", 1_000, 300, **{"% util": 60})
    drawing.event(tpu, counters, "Vector ALU", 100, 900, **{"% util": 90})
    drawing.event(tpu, drawing.line(tpu, "XLA Ops"), ALL_REDUCE, 500, 50, display="all-reduce")
    (device,) = [device for device in drawing.read().devices if device.index == 5]
    # (900 x 0.2 + 300 x 0.6) / 1,200.
    assert device.matrix_unit_use == pytest.approx(0.3)


def test_op_line_is_work_and_loops_count_by_their_body() -> None:
    trace = tpu_xspace().read()
    stream = [
        (trace.name(row), EventKind(int(trace.events.kind[row])).name)
        for row in range(len(trace.events))
        if trace.tracks.kind[trace.events.track[row]] == TrackKind.DEVICE_STREAM
    ]
    assert stream == [
        ("while.1", "DEVICE_ANNOTATION"),
        ("dot.1", "KERNEL"),
        ("dot.1", "KERNEL"),
        ("all-reduce", "COLLECTIVE"),
    ]


def test_derived_lines_and_parts_of_the_chip_are_never_work() -> None:
    trace = tpu_xspace().read()
    derived = {
        trace.name(row): EventKind(int(trace.events.kind[row])).name
        for row in range(len(trace.events))
        if trace.tracks.kind[trace.events.track[row]] == TrackKind.DEVICE_LINE
    }
    assert derived == {
        "jit_f(77)": "DEVICE_MODULE",
        "async-copy": "DEVICE_ASYNC",
        "barrier-cores": "DEVICE_ANNOTATION",
        "12": "DEVICE_STEP",
        "gather": "DEVICE_OP",
    }
    assert trace.events.step[row_of(trace, "12")] == 12


def test_operations_are_launched_by_the_call_that_launched_their_module() -> None:
    trace = tpu_xspace().read()
    for name in ("jit_f(77)", "all-reduce"):
        launch = int(trace.events.launched_by[row_of(trace, name)])
        assert trace.name(launch) == "DoEnqueueProgram"


def test_operations_with_their_work() -> None:
    trace = tpu_xspace().read()
    stated = trace.events.kind[trace.hlo_events.row] == EventKind.KERNEL
    assert trace.hlo.flop[trace.hlo_events.op[stated]].tolist() == [4096, 4096]
    assert trace.hlo.traffic_bytes[trace.hlo_events.op[stated]].tolist() == [512, 512]
    names = [trace.text(index) for index in trace.hlo.name.tolist()]
    assert sorted(names) == ["all-reduce", "dot.1", "while.1"]
    dot = names.index("dot.1")
    assert trace.text(int(trace.hlo.category[dot])) == "convolution"
    assert trace.text(int(trace.hlo.module[dot])) == "jit_f(77)"
    assert trace.text(int(trace.hlo.source_line[dot])) == "train.py:37"
    assert trace.hlo.flop[dot] == 4096
    assert math.isnan(trace.hlo.flop[names.index("while.1")])
    assert (trace.hlo_events.op == dot).sum() == 2
    assert trace.collectives.size_bytes.tolist() == [ARRAY_BYTES]


def test_bytes_on_the_chip_are_no_traffic() -> None:
    drawing = Drawing()
    tpu = drawing.plane("/device:TPU:0", device_type_string="TPU v6 Lite")
    line = drawing.line(tpu, "XLA Ops")
    shared = {"flops": 4096, "bytes_accessed": 3 * 2048}
    for number, (left, right) in enumerate((("", ""), ("S(1)", ""), ("S(1)", "S(1)"))):
        array = "bf16[8,128]{1,0:T(8,128)(2,1)"
        text = f"%add.{number} = {array}S(1)}} add({array}{left}}} %a, {array}{right}}} %b)"
        if not left:
            text = text.replace("S(1)", "")
        drawing.event(tpu, line, text, 10 * number, 5, display=f"add.{number}", shared=shared)
    trace = drawing.read()
    # Three arrays of 8 x 128 x 2 B = 2,048 B: all in the device's memory, one of them, none.
    assert trace.hlo.traffic_bytes.tolist() == [3 * 2048, 2048, 0]


def test_peaks_come_from_the_device_plane() -> None:
    (device,) = tpu_xspace().read().devices
    assert (device.index, device.name, device.kind) == (3, "TPU v6 Lite", "tpu")
    assert device.reported_flop_per_s == 918e12
    assert device.reported_bandwidth_bytes_per_s == 1638e9


def test_stretched_operations_are_moved_to_the_device_clock() -> None:
    # In ms, from XProf's tpu_inference_2: a copy of 194 ms in which the profile's clock was
    # corrected by 105 ms. Everything before the copy keeps its place relative to the host.
    drawing = Drawing()
    tpu = drawing.plane("/device:TPU:0", device_type_string="TPU v6 Lite")
    line = drawing.line(tpu, "XLA Ops")
    for name, at, lasts, device_at, device_lasts in (
        ("add.0", 40, 10, 140, 10),
        ("add.1", 50, 10, 150, 10),
        ("copy-done.2", 60, 299, 160, 194),
        ("add.3", 359, 8, 354, 8),
    ):
        drawing.event(
            tpu,
            line,
            name,
            at * 10**6,
            lasts * 10**6,
            device_offset_ps=device_at * 10**9,
            device_duration_ps=device_lasts * 10**9,
        )
    modules = drawing.line(tpu, "XLA Modules")
    drawing.event(tpu, modules, "jit_f(1)", 40 * 10**6, 327 * 10**6)
    trace = drawing.read()
    spans = {
        trace.name(row): (
            int(trace.events.start_ns[row]) // 10**6,
            int(trace.events.duration_ns[row]) // 10**6,
        )
        for row in range(len(trace.events))
    }
    # The median distance of the two clocks is -100 ms.
    assert spans == {
        "add.0": (0, 10),
        "add.1": (10, 10),
        "copy-done.2": (20, 194),
        "add.3": (214, 8),
        "jit_f(1)": (0, 222),
    }
    assert [note.id for note in trace.notes] == ["device-clock"]


def test_small_clock_differences_are_unchanged() -> None:
    drawing = Drawing()
    tpu = drawing.plane("/device:TPU:0")
    line = drawing.line(tpu, "XLA Ops")
    drawing.event(tpu, line, "add.0", 0, 1001, device_offset_ps=10**9, device_duration_ps=1_000_000)
    trace = drawing.read()
    assert trace.events.duration_ns.tolist() == [1001]
    assert trace.notes == ()
