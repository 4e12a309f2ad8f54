"""Profiles of compiled programs read like recorded ones, and say that they are none."""

from __future__ import annotations

from io import BytesIO

import numpy as np

from demo_logs.record.compiled import CompiledOperation, CompiledSchedule, write_compiled
from tb_perfadvisor.ingest.xspace.reader import read_xplane
from tb_perfadvisor.trace import EventKind, KernelFamily, Source, Trace

US = 1_000_000
PRODUCT = CompiledOperation(
    "fusion.1",
    "%fusion.1 = bf16[1024,512]{1,0:T(8,128)(2,1)} fusion(bf16[1024,256]{1,0:T(8,128)(2,1)} %x, "
    "bf16[256,512]{1,0:T(8,128)(2,1)S(1)} %w), kind=kOutput, calls=%fused_computation.1",
    "convolution fusion",
    duration_ps=40 * US,
    flop=268_435_456,
    traffic_bytes=1_835_008,
    path="jit(train_step)/dot_general",
    source="train.py:7",
)
UPDATE = CompiledOperation(
    "fusion.2",
    "%fusion.2 = bf16[256,512]{1,0:T(8,128)(2,1)} fusion(bf16[256,512]{1,0:T(8,128)(2,1)} %w), "
    "kind=kLoop, calls=%fused_computation.2",
    "loop fusion",
    duration_ps=58 * US,
)


def profile(chips: int = 1) -> Trace:
    schedule = CompiledSchedule(
        module="jit_train_step",
        device="TPU v6 Lite",
        compiler="a compiler",
        operations=(PRODUCT, UPDATE),
        hlo_proto=b"\x0a\x01m" * 50,
        chips=chips,
    )
    return read_xplane(BytesIO(write_compiled(schedule)), Source(path="x", format=""))


def test_operations_have_their_times_and_facts() -> None:
    trace = profile()
    rows = trace.rows(EventKind.KERNEL)
    # Runs of 98 us begin every 100 us, 60 us after the profile's start.
    starts = np.array([60, 100, 160, 200, 260, 300, 360, 400, 460, 500]) * 1000
    assert trace.events.start_ns[rows].tolist() == starts.tolist()
    assert trace.events.duration_ns[rows].tolist() == [40_000, 58_000] * 5
    assert trace.kernels.family.tolist() == [KernelFamily.MATMUL, KernelFamily.ELEMENTWISE] * 5
    assert trace.text(int(trace.hlo.path[0])) == "jit(train_step)/dot_general"
    assert trace.text(int(trace.hlo.source_line[0])) == "train.py:7"
    assert trace.hlo.flop[0] == 268_435_456
    # The weights, in S(1), are on the chip: 2 x (1024 x 256 + 1024 x 512) bytes are left.
    assert trace.hlo.traffic_bytes[0] == 1_572_864


def test_every_run_is_linked_to_its_launch() -> None:
    trace = profile()
    launches = trace.events.launched_by[trace.rows(EventKind.KERNEL)]
    assert (launches >= 0).all()
    ends = trace.events.end_ns[launches]
    assert (ends <= trace.events.start_ns[trace.rows(EventKind.KERNEL)]).all()
    assert len(set(launches.tolist())) == 5


def test_the_device_has_its_name_and_peaks() -> None:
    (device,) = profile().devices
    assert (device.name, device.kind) == ("TPU v6 Lite", "tpu")
    # Google Cloud documentation, TPU v6e.
    assert device.reported_flop_per_s == 918e12
    assert device.reported_bandwidth_bytes_per_s == 1638e9


def test_each_chip_has_a_plane() -> None:
    trace = profile(chips=4)
    assert [device.index for device in trace.devices] == [0, 1, 2, 3]
    assert len(trace.rows(EventKind.KERNEL)) == 4 * 10


def test_it_is_marked_as_synthetic_and_says_who_estimated_it() -> None:
    trace = profile()
    assert trace.source.is_synthetic
    (note,) = trace.notes
    assert note.id == "estimated-durations"
    assert note.message.endswith("all durations are estimates of a compiler.")


def test_equal_programs_give_equal_bytes() -> None:
    schedule = CompiledSchedule("jit_f", "TPU v6 Lite", "a compiler", (PRODUCT,), b"abc")
    assert write_compiled(schedule) == write_compiled(schedule)
