from __future__ import annotations

import os
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import msgspec
import pytest

from tb_perfadvisor.instrument.nvml import DeviceSampler
from tb_perfadvisor.instrument.step_timers import StepTimers
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
