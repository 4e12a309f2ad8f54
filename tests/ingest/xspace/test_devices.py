"""Any accelerator is a device, whatever its name and lines; a CPU is not."""

from __future__ import annotations

import pytest

from tb_perfadvisor.ingest.xspace.interpret.devices import PlaneDevice, place_devices
from tb_perfadvisor.signals import Need, Signals, why_missing
from tb_perfadvisor.testing import run_of
from tb_perfadvisor.trace import Trace, TrackKind
from tests.support.xspaces import Drawing, kinds


@pytest.mark.parametrize(
    ("names", "places"),
    [
        (
            ["/device:TPU:0", "/device:TPU:0 SparseCore 1", "/device:TPU:3", "/host:CPU"],
            [
                PlaneDevice("TPU", 0, ""),
                PlaneDevice("TPU", 0, "SparseCore 1"),
                PlaneDevice("TPU", 3, ""),
                None,
            ],
        ),
        # Two types may share a number: the one that allocators refer to keeps it.
        (
            ["/device:XYZ:0", "/device:GPU:0", "/device:GPU:1"],
            [PlaneDevice("XYZ", 2, ""), PlaneDevice("GPU", 0, ""), PlaneDevice("GPU", 1, "")],
        ),
        # Without a number it is beside the devices that have one, or is a device itself.
        (
            ["/device:CUSTOM:Megascale Trace", "/device:TPU:4"],
            [PlaneDevice("CUSTOM", 4, "Megascale Trace"), PlaneDevice("TPU", 4, "")],
        ),
        (
            ["/device:CUSTOM:npu", "/device:CUSTOM:npu two", "/device:NPU"],
            [PlaneDevice("CUSTOM", 0, ""), PlaneDevice("CUSTOM", 1, ""), PlaneDevice("NPU", 2, "")],
        ),
        (["/device:CPU:0", "/host:CPU", "Task Environment", "/device:", ""], [None] * 5),
    ],
)
def test_placement_of_devices(names: list[str], places: list[PlaneDevice | None]) -> None:
    found = place_devices(names)
    assert [found.get(name) for name in names] == places


def drawn(plane_name: str, line_name: str, *events: str) -> Trace:
    drawing = Drawing()
    host = drawing.plane("/host:CPU")
    thread = drawing.line(host, "python")
    drawing.event(host, thread, "train", 0, 100, step_num=1)
    device = drawing.plane(plane_name)
    line = drawing.line(device, line_name)
    for number, name in enumerate(events):
        drawing.event(device, line, name, 10 * number, 6)
    covering = drawing.line(device, "XLA Modules")
    drawing.event(device, covering, "jit_step(1)", 0, 90)
    return drawing.read()


DOT = "%dot.1 = bf16[8,128]{1,0} dot(bf16[8,64]{1,0} %a, bf16[64,128]{1,0} %b)"


@pytest.mark.parametrize("plane_name", ["/device:XYZ:0", "/device:CUSTOM:npu", "/device:XPU"])
@pytest.mark.parametrize(
    ("line_name", "event"),
    [
        ("Stream #3(compute)", "some_kernel"),
        ("XLA Ops", DOT),
        # Lines of an unknown kind.
        ("Engine 0", "some_kernel"),
    ],
)
def test_an_unknown_accelerator_is_a_device_without_peaks(
    plane_name: str, line_name: str, event: str
) -> None:
    trace = drawn(plane_name, line_name, event, event)
    (device,) = trace.devices
    assert (device.index, device.kind) == (0, "other")
    assert device.name == f"{plane_name.split(':')[1]} device"
    assert device.reported_flop_per_s is None
    assert device.reported_bandwidth_bytes_per_s is None
    signals = Signals(run_of(trace))
    assert not signals.device.is_host_only
    # Two events of 6 ns; the lines that cover them do not count.
    assert signals.device.busy.tolist() == [[0, 6], [10, 16]]
    missing = why_missing(signals, Need.PEAKS)
    assert missing is not None
    assert missing.reason == "the peaks of the device are unknown"


def test_operations_of_an_unknown_accelerator_are_classified_by_text() -> None:
    trace = drawn("/device:XYZ:0", "XLA Ops", DOT)
    assert trace.name(int(trace.kernels.row[0])) == "dot.1"
    assert why_missing(Signals(run_of(trace)), Need.KERNEL_PRECISION) is None


def test_planes_other_than_devices_are_never_work() -> None:
    drawing = Drawing()
    tpu = drawing.plane("/device:TPU:1", device_type_string="TPU v4")
    ops = drawing.line(tpu, "XLA Ops")
    drawing.event(tpu, ops, "fusion.1", 0, 10)
    plane = drawing.plane("/device:CUSTOM:Megascale Trace")
    line = drawing.line(plane, "D2D")
    drawing.event(plane, line, "transfer", 20, 50)
    trace = drawing.read()
    assert [device.name for device in trace.devices] == ["TPU v4"]
    assert kinds(trace) == {"fusion.1": "KERNEL", "transfer": "DEVICE_ANNOTATION"}
    assert Signals(run_of(trace)).device.busy.tolist() == [[0, 10]]


def test_empty_plane_without_a_number_is_not_a_device() -> None:
    drawing = Drawing()
    drawing.plane("/device:CUSTOM:Megascale Trace")
    host = drawing.plane("/host:CPU")
    drawing.event(host, drawing.line(host, "python"), "PjitFunction(step)", 0, 10)
    assert drawing.read().devices == ()


def test_cpu_plane_is_not_a_device() -> None:
    drawing = Drawing()
    plane = drawing.plane("/device:CPU:0")
    line = drawing.line(plane, "python")
    drawing.event(plane, line, "model/dense/MatMul:MatMul", 0, 10)
    trace = drawing.read()
    assert trace.devices == ()
    assert trace.tracks.kind.tolist() == [TrackKind.HOST_THREAD]
    assert kinds(trace) == {"model/dense/MatMul:MatMul": "OPERATOR"}
    assert Signals(run_of(trace)).device.is_host_only
