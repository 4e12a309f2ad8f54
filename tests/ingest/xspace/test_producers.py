"""Each framework on each kind of device: drawn profiles, and recorded ones."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tb_perfadvisor import load
from tb_perfadvisor.hardware import identify
from tb_perfadvisor.ingest.xspace.reader import read_xplane
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.testing import run_of
from tb_perfadvisor.trace import EventKind, Source, Trace
from tests.support.corpus_traces import CORPUS
from tests.support.xspaces import Drawing, Reference

LAUNCH_CONTEXT = 12  # tsl/profiler/lib/context_types.h: kTpuLaunch


def host(drawing: Drawing, **versions: str) -> tuple[Any, Any]:
    plane = drawing.plane("/host:CPU")
    if versions:
        drawing.plane("/host:metadata", **versions)
    return plane, drawing.line(plane, "python")


def tensorflow(drawing: Drawing) -> tuple[Any, Any]:
    plane, thread = host(drawing, tf_version="2.21.0")
    for step in (7, 8):
        drawing.event(plane, thread, "train", 100 * step, 90, step_num=step, _r=1)
        drawing.event(plane, thread, "IteratorGetNextOp::DoCompute", 100 * step + 1, 20)
        call = Reference("__inference_step_8407")
        drawing.event(plane, thread, "EagerExecute", 100 * step + 30, 50, eager_op=call, is_func=1)
    return plane, thread


def jax(drawing: Drawing) -> tuple[Any, Any]:
    plane, thread = host(drawing, jax_version="0.10.2", jaxlib_version="0.10.2")
    for step in (7, 8):
        drawing.event(plane, thread, "train", 100 * step, 90, step_num=step, _r=1)
        drawing.event(plane, thread, "$dataloader.py:633 __next__", 100 * step + 1, 20)
        drawing.event(plane, thread, "PjitFunction(step)", 100 * step + 30, 50)
    return plane, thread


def pytorch(drawing: Drawing) -> tuple[Any, Any]:
    # torch_xla.debug.profiler.StepTrace("train_loop", step_num=…), no versions in the file.
    plane, thread = host(drawing)
    for step in (7, 8):
        drawing.event(plane, thread, "train_loop", 100 * step, 90, step_num=step, _r=1)
        drawing.event(plane, thread, "XLAGraphExecutor::SyncTensorsGraphInternal", 100 * step, 5)
        drawing.event(plane, thread, "PjRtComputationClient::ExecuteComputation", 100 * step + 9, 5)
    return plane, thread


def cpu(drawing: Drawing, plane: Any, thread: Any) -> None:
    """A host without devices."""


def nvidia(drawing: Drawing, plane: Any, thread: Any) -> None:
    _gpu(drawing, plane, thread, "cuLaunchKernel", device_vendor="Nvidia", compute_cap_major=9)


def amd(drawing: Drawing, plane: Any, thread: Any) -> None:
    _gpu(drawing, plane, thread, "hipLaunchKernel", device_vendor="AMD", compute_cap_major=9)


def _gpu(drawing: Drawing, plane: Any, thread: Any, call: str, **stats: Any) -> None:
    gpu = drawing.plane("/device:GPU:0", compute_cap_minor=0, core_count=132, **stats)
    stream = drawing.line(gpu, "Stream #7(Kernel)")
    for step in (7, 8):
        drawing.event(plane, thread, call, 100 * step + 40, 2, correlation_id=step)
        drawing.event(gpu, stream, "gemm", 100 * step + 50, 30, correlation_id=step)


def tpu(drawing: Drawing, plane: Any, thread: Any) -> None:
    core = drawing.plane("/device:TPU:0", device_type_string="TPU v5e")
    modules, ops = drawing.line(core, "XLA Modules"), drawing.line(core, "XLA Ops")
    for step in (7, 8):
        launch = {"_pt": LAUNCH_CONTEXT, "_p": step}
        drawing.event(plane, thread, "DoEnqueueProgram", 100 * step + 40, 2, **launch)
        run = {"_ct": LAUNCH_CONTEXT, "_c": step}
        drawing.event(core, modules, "jit_step(3)", 100 * step + 50, 30, **run)
        drawing.event(core, ops, "%fusion.1 = f32[8] fusion(f32[8] %a)", 100 * step + 50, 30)


@pytest.mark.parametrize("framework", [tensorflow, jax, pytorch])
@pytest.mark.parametrize(
    ("device", "kind"), [(cpu, None), (nvidia, "gpu"), (amd, "gpu"), (tpu, "tpu")]
)
def test_every_framework_on_every_device(framework: Any, device: Any, kind: str | None) -> None:
    drawing = Drawing()
    device(drawing, *framework(drawing))
    trace = drawing.read()
    assert trace.source.framework == framework.__name__
    assert [found.kind for found in trace.devices] == ([kind] if kind else [])
    assert trace.events.step[trace.rows(EventKind.STEP)].tolist() == [7, 8]
    signals = Signals(run_of(trace))
    assert signals.steps.count == 2
    assert signals.device.is_host_only == (kind is None)
    if kind:
        # Both executions link to their launch.
        assert len(signals.device.rows) == 2
        assert (trace.events.launched_by[signals.device.rows] >= 0).all()
    has_input = framework is not pytorch
    assert len(trace.rows(EventKind.INPUT_WAIT)) == (2 if has_input else 0)


def test_a_host_without_a_name_for_its_framework() -> None:
    drawing = Drawing()
    plane, thread = host(drawing)
    drawing.event(plane, thread, "my_range", 0, 10)
    assert drawing.read().source.framework == "unknown"


def test_versions_take_precedence_over_names() -> None:
    # JAX programs read their data through tf.data: names of both frameworks are in one file.
    drawing = Drawing()
    plane, thread = host(drawing, jax_version="0.10.2", libtpu_version="0.0.30")
    drawing.event(plane, thread, "IteratorGetNextOp::DoCompute", 0, 10)
    source = drawing.read().source
    assert (source.framework, source.version) == ("jax", "0.10.2")
    assert source.producer == "jax 0.10.2, libtpu 0.0.30"


STATS: dict[str, Any] = {
    "correlation_id": 12,
    "kernel_details": "regs:32 static_shared:0 dynamic_shared:0 grid:4,1,1 block:64,1,1 occ_pct:50",
    "hlo_op": "fusion.1",
    "hlo_module": "jit_f",
    "program_id": 3,
}


@pytest.mark.parametrize("as_reference", [False, True])
@pytest.mark.parametrize("shared", [set(), {"kernel_details"}, {"hlo_op", "program_id"}, {*STATS}])
def test_stats_on_events_and_on_their_kind_are_the_same(
    shared: set[str], as_reference: bool
) -> None:
    def stats(names: set[str]) -> dict[str, Any]:
        found = {name: STATS[name] for name in STATS if name in names}
        if as_reference:
            return {k: Reference(v) if isinstance(v, str) else v for k, v in found.items()}
        return found

    drawing = Drawing()
    plane, thread = host(drawing)
    call = {"correlation_id": 12} if "correlation_id" in shared else {}
    event_stats = {} if call else {"correlation_id": 12}
    drawing.event(plane, thread, "cuLaunchKernel", 0, 2, shared=call, **event_stats)
    gpu = drawing.plane("/device:GPU:0")
    stream = drawing.line(gpu, "Stream #7(Kernel)")
    event_stats = stats({*STATS} - shared)
    drawing.event(gpu, stream, "kernel", 5, 2, shared=stats(shared), **event_stats)
    trace = drawing.read()
    kernels = trace.kernels
    assert trace.name(int(trace.events.launched_by[kernels.row[0]])) == "cuLaunchKernel"
    assert (kernels.grid_blocks[0], kernels.block_threads[0], kernels.registers[0]) == (4, 64, 32)
    assert kernels.occupancy_share[0] == 0.5
    assert trace.text(int(trace.hlo.name[0])) == "fusion.1"
    assert trace.text(int(trace.hlo.module[0])) == "jit_f(3)"


def test_stat_of_an_event_takes_precedence_over_that_of_its_kind() -> None:
    drawing = Drawing()
    plane, thread = host(drawing)
    drawing.event(plane, thread, "train", 0, 10, shared={"step_num": 3})
    drawing.event(plane, thread, "train", 20, 10, step_num=4)
    assert drawing.read().events.step.tolist() == [3, 4]


def session(tmp_path: Path, **hosts: bytes) -> Path:
    folder = tmp_path / "run" / "plugins" / "profile" / "2026_01_01_00_00_00"
    folder.mkdir(parents=True)
    for name, data in hosts.items():
        (folder / f"{name}.xplane.pb").write_bytes(data)
    return tmp_path


def one_step(hostname: str, for_ns: int) -> bytes:
    drawing = Drawing()
    plane, thread = host(drawing, jax_version="0.10.2")
    drawing.event(plane, thread, "train", 0, for_ns, step_num=1)
    drawing.space.hostnames.append(hostname)
    return drawing.bytes()


def test_the_hosts_of_a_session_are_the_workers_of_one_run(tmp_path: Path) -> None:
    data = {f"tpu-{number}": one_step(f"tpu-{number}", 10 + number) for number in (2, 0, 1)}
    (run,) = load(session(tmp_path, **data))
    assert [trace.source.host for trace in run.traces] == ["tpu-0", "tpu-1", "tpu-2"]
    assert [trace.duration_ns for trace in run.traces] == [10, 11, 12]


def test_hosts_of_equal_name_are_distinguished_by_file(tmp_path: Path) -> None:
    # As in containers: each file names the host `localhost`.
    data = {name: one_step("localhost", 10) for name in ("10.0.0.1_6003", "10.0.0.2_6003")}
    (run,) = load(session(tmp_path, **data))
    hosts = [trace.source.host for trace in run.traces]
    assert hosts == ["10.0.0.1_6003", "10.0.0.2_6003"]


def test_stream_without_a_file_name_uses_the_recorded_host(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(one_step("worker-3", 10))
    with path.open("rb") as stream:
        assert read_xplane(stream, Source(path="x", format="")).source.host == "worker-3"


MI300X, V100 = {"AMD Instinct MI300X": 8}, {"Tesla V100-SXM2-16GB": 8}
MI350 = {"AMD GPU": 7, "AMD Instinct MI355X": 1}


@pytest.mark.corpus
@pytest.mark.parametrize(
    ("folder", "framework", "devices", "steps", "source"),
    [
        # The scripts that recorded the local ones run six steps; Keras was told to record five.
        ("local-jax-cpu/train_steps", "jax", {}, 6, "train"),
        ("local-jax-cpu/train_dp4_sharded", "jax", {}, 6, "train"),
        # Six calls: how long the last step took is not known.
        ("local-jax-cpu/train_no_step_annotation", "jax", {}, 5, "repeats of PjitFunction(step)"),
        ("local-tf-cpu/custom_loop_trace_steps", "tensorflow", {}, 6, "train"),
        ("local-tf-cpu/keras_slow_input", "tensorflow", {}, 5, "Profiled batch"),
        # INDEX: 8x MI300X, MI350; one step of the V100s, on the `Steps` line; no marks elsewhere.
        # Five calls each. The last one is left out, because nothing marks its end.
        ("tracelens-jax/jax08_conv", "jax", MI300X, 4, "repeats of PjitFunction(forward_3d_conv)"),
        ("tracelens-jax/test_data_jax_te_fused_attn_categorization", "jax", MI350, 4, None),
        (
            "xprof-demo/plugins/profile/GPU-multi-worker",
            "tensorflow",
            V100,
            1,
            "the device's Steps line",
        ),
        ("xprof-test", "jax", {"TPU v6 Lite": 4}, 100, "repeats of the XLA module jit_f"),
    ],
)
def test_recordings(
    folder: str, framework: str, devices: dict[str, int], steps: int, source: str | None
) -> None:
    (path,) = (CORPUS / folder).glob("**/*.xplane.pb")
    with path.open("rb") as stream:
        trace = read_xplane(stream, Source(path="", format=""))
    assert trace.source.framework == framework
    assert Counter(identify(device).name for device in trace.devices) == devices
    signals = Signals(run_of(trace))
    assert signals.steps.count == steps
    assert source is None or signals.steps.source == source
    rows = signals.device.rows
    assert (trace.events.launched_by[rows] >= 0).all()


@pytest.mark.corpus
def test_two_files_of_one_host_are_two_workers(tmp_path: Path) -> None:
    # As in XProf's demo: the files of two workers are identical.
    (path,) = CORPUS.glob("xprof-demo/plugins/profile/GPU-multi-worker/*.xplane.pb")
    names = ("34.83.195.179_6003", "34.83.231.58_6003")
    (run,) = load(session(tmp_path, **dict.fromkeys(names, path.read_bytes())))
    assert [trace.source.host for trace in run.traces] == [*names]
    # XProf's kernel_stats adds the workers up: 59 381.496 us, each to a thousandth.
    total_ns = sum(kernel_ns(trace) for trace in run.traces)
    assert total_ns == pytest.approx(59_381_496, abs=100)


def kernel_ns(trace: Trace) -> int:
    return int(trace.events.duration_ns[trace.rows(EventKind.KERNEL)].sum())
