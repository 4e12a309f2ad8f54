from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import msgspec
import pytest
from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
from tensorboard.compat.proto.event_pb2 import Event

from tb_perfadvisor.instrument.nvml import DeviceSampler
from tb_perfadvisor.instrument.step_timers import ScalarWriter, StepTimers
from tb_perfadvisor.machine.facts import MOST_ROWS, RunTimers


def made(folder: Path) -> StepTimers:
    return StepTimers(folder, lambda: "rank3")


def steps(timers: StepTimers, count: int, first: int = 1) -> None:
    for number in range(first, first + count):
        timers.step_ended(number, is_usual=True)
        timers.begin()


def read(folder: Path) -> RunTimers:
    (file,) = folder.glob("*.json")
    assert file.name == "rank3.run.perfadvisor.json"
    return msgspec.json.decode(file.read_bytes(), type=RunTimers)


def test_each_step_is_timed_but_the_first_and_unusual_ones(tmp_path: Path) -> None:
    timers = made(tmp_path)
    steps(timers, 3)
    timers.step_ended(4, is_usual=False)
    timers.begin()
    steps(timers, 1, first=5)
    timers.close()
    found = read(tmp_path)
    # Nothing tells when the first step began.
    assert found.first_step == (1, 2, 4)
    assert found.steps == (1, 1, 1)
    assert found.rank == 3
    assert found.is_sound
    assert found.input_ns == ()
    assert found.ready_ns == (None, None, None)
    assert found.device is None


def test_a_long_run_has_few_rows_of_all_its_steps(tmp_path: Path) -> None:
    timers = made(tmp_path)
    steps(timers, 10_000)
    timers.close()
    found = read(tmp_path)
    assert len(found.steps) <= MOST_ROWS
    assert sum(found.steps) == 9_999
    # 10,000 steps fit into 512 rows of 32.
    assert {each % 32 for each in found.first_step[1:]} == {0}
    assert found.is_sound


def test_discarded_timers_leave_nothing(tmp_path: Path) -> None:
    timers = made(tmp_path)
    steps(timers, 2)
    timers.write()
    timers._write_point({})
    assert len([path for path in tmp_path.rglob("*") if path.is_file()]) == 2
    timers.discard()
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


# --- a GPU that is none ---------------------------------------------------------------------------


def fake_nvml(monkeypatch: pytest.MonkeyPatch, reasons: int = 0x40) -> ModuleType:
    """NVML as of a machine with two GPUs, of which this process uses the second."""
    nvml = ModuleType("pynvml")

    def processes(handle: int) -> list[SimpleNamespace]:
        return [SimpleNamespace(pid=os.getpid() if handle == 1 else 1)]

    def unsupported(handle: int) -> int:
        raise RuntimeError("not supported")

    vars(nvml).update(
        NVML_CLOCK_SM=1,
        NVML_TEMPERATURE_GPU=0,
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetComputeRunningProcesses=processes,
        nvmlDeviceGetName=lambda handle: f"GPU {handle}",
        nvmlDeviceGetMaxClockInfo=lambda handle, clock: 1_410,
        nvmlDeviceGetEnforcedPowerLimit=lambda handle: 400_000,
        nvmlDeviceGetCurrentClocksThrottleReasons=lambda handle: reasons,
        nvmlDeviceGetClockInfo=lambda handle, clock: 940,
        nvmlDeviceGetUtilizationRates=lambda handle: SimpleNamespace(gpu=97, memory=40),
        nvmlDeviceGetMemoryInfo=lambda handle: SimpleNamespace(used=60 << 30),
        nvmlDeviceGetPowerUsage=unsupported,
        nvmlDeviceGetTemperature=lambda handle, sensor: 91,
    )
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    return nvml


def test_what_the_driver_tells_of_the_gpu_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_nvml(monkeypatch)
    sampler = DeviceSampler()
    assert sampler.sample() == {
        "utilization": 0.97,
        "memory_bytes": 60 << 30,
        "clock_hz": 940e6,
        "temperature_c": 91.0,
        "thermal slowdown": 1.0,  # the power is unknown, and not 0
        "hardware slowdown": 0.0,
        "power brake": 0.0,
        "power cap": 0.0,
    }
    assert (sampler.name, sampler.max_clock_hz, sampler.power_limit_w) == ("GPU 1", 1.41e9, 400.0)


def test_the_clock_of_an_idle_gpu_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_nvml(monkeypatch, reasons=0x1)
    assert "clock_hz" not in DeviceSampler().sample()


def test_without_nvml_all_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert DeviceSampler().sample() == {}


def test_the_library_has_what_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    real = pytest.importorskip("pynvml")
    for name in vars(fake_nvml(monkeypatch)):
        assert name.startswith("__") or hasattr(real, name), name


def test_tensorboard_reads_the_points(tmp_path: Path) -> None:
    writer = ScalarWriter(tmp_path)
    writer.add(300, {"step_ms": 1.5, "a/längerer-Name": -0.25})
    writer.add(0, {"step_ms": 2.0})
    writer.close()
    # The reader checks what each record's checksums say.
    records = RawEventFileLoader(str(writer.path)).Load()
    first, *points = [Event.FromString(record) for record in records]
    assert first.file_version == "brain.Event:2"
    assert first.wall_time <= points[0].wall_time <= points[1].wall_time
    assert [
        (point.step, [(value.tag, value.simple_value) for value in point.summary.value])
        for point in points
    ] == [(300, [("step_ms", 1.5), ("a/längerer-Name", -0.25)]), (0, [("step_ms", 2.0)])]


def test_points_are_written_without_an_import_that_slows_the_steps(tmp_path: Path) -> None:
    program = (
        "import sys, pathlib\n"
        "from tb_perfadvisor.instrument.step_timers import StepTimers\n"
        "timers = StepTimers(pathlib.Path(sys.argv[1]), lambda: 'rank3')\n"
        "before = set(sys.modules)\n"
        "for number in (1, 2):\n"
        "    timers.step_ended(number, is_usual=True)\n"
        "    timers.begin()\n"
        "timers._write_point({})\n"
        "print(*sorted(set(sys.modules) - before))\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    imported = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert list((tmp_path / "perf_advisor/whole_run/rank3").iterdir())
    assert not [each for each in imported.split() if not each.startswith("encodings.")]
