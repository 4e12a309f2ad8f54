"""Times every step of a run without a trace: what it waits for input, and when its gradients begin.

A step costs about a microsecond. A thread looks at the GPU once a second, and now and then writes
scalars for TensorBoard and one small file that the reports of the run's captures read. However long
the run, the file has at most 512 rows: when they are full, two neighbors become one.
"""

from __future__ import annotations

import os
import re
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import Any, Final

import msgspec

from tb_perfadvisor.instrument.nvml import DeviceSampler
from tb_perfadvisor.instrument.step_hooks import when_imported
from tb_perfadvisor.instrument.threads import SideThread
from tb_perfadvisor.machine.facts import (
    HEAT,
    MOST_ROWS,
    POWER_CAP,
    RUN_SUFFIX,
    DeviceTimers,
    RunTimers,
)

SCALARS: Final = "perf_advisor/whole_run"
"""Below a run's directory; `perf_advisor` is never taken for a run of its own."""
_LOOK_EVERY_S: Final = 1.0
_WRITE_EVERY_S: Final = 5.0
_MOST_POINTS: Final = 2_000
"""After so many points, scalars are written half as often."""
_RENEW: Final = 1.5
"""The file is written again when the run is half as long again: each time, the reports of all its
captures are made anew."""
_FIRST_FILE_S: Final = 30.0
_RANK: Final = re.compile(r"rank(\d+)")


class _Row(msgspec.Struct):
    """Sums over some steps."""

    first: int
    start_ns: int
    end_ns: int = 0
    steps: int = 0
    step_ns: int = 0
    input_ns: int = 0
    ready_ns: int = 0
    ready_steps: int = 0
    device: dict[str, tuple[float, int]] = {}
    """Sums of looks at the GPU, and of how many."""

    def add_look(self, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            total, count = self.device.get(name, (0.0, 0))
            self.device[name] = total + value, count + 1

    def add(self, later: _Row) -> None:
        self.end_ns = later.end_ns
        self.steps += later.steps
        self.step_ns += later.step_ns
        self.input_ns += later.input_ns
        self.ready_ns += later.ready_ns
        self.ready_steps += later.ready_steps
        for name, (total, count) in later.device.items():
            before, looks = self.device.get(name, (0.0, 0))
            self.device[name] = before + total, looks + count

    def mean(self, name: str) -> float | None:
        total, count = self.device.get(name, (0.0, 0))
        return total / count if count else None


class StepTimers:
    """The timers of one process. Never raises once it has begun."""

    def __init__(
        self,
        logdir: Path,
        worker: Callable[[], str],
        sampler: DeviceSampler | None = None,
    ) -> None:
        """Begin."""
        self._logdir = logdir
        self._worker = worker
        self._sampler = sampler or DeviceSampler()
        self._rows: list[_Row] = []
        self._width = 1
        self._row = _Row(0, time.time_ns())
        self._began_ns = self._input_ns = self._ready_ns = 0
        self._sees_input = False
        self._number = 0
        self._totals = (0, 0, 0)
        """Steps, their time, and their waits for input, since the last point was written."""
        self._scalars: ScalarWriter | None = None
        self._points = 0
        self._step_thread = threading.main_thread().ident
        self._is_fetching = False
        self._pid = os.getpid()
        self._began_s = self._written_s = time.monotonic()
        self._file_s = 0.0
        """How long the run had taken when its file was written last."""
        self._files: list[Path] = []
        self._thread = SideThread(self._look)
        _watch(self)

    # --- the hot path -----------------------------------------------------------------------------

    def begin(self) -> None:
        """A step begins."""
        self._input_ns = self._ready_ns = 0
        self._began_ns = time.perf_counter_ns()

    def step_ended(self, number: int, *, is_usual: bool) -> None:
        """A step ended; one that was recorded, or was more than a step, is not timed."""
        now_ns = time.perf_counter_ns()
        if not self._thread.is_started:
            self._begin_thread(number)
        row = self._row
        if is_usual and self._began_ns:
            duration_ns = now_ns - self._began_ns
            row.steps += 1
            row.step_ns += duration_ns
            row.input_ns += self._input_ns
            if self._ready_ns:
                row.ready_ns += self._ready_ns - self._began_ns
                row.ready_steps += 1
            steps, step_ns, input_ns = self._totals
            self._totals = steps + 1, step_ns + duration_ns, input_ns + self._input_ns
        self._number = number
        if number % self._width == 0:
            self._finish_row(number)

    def gradients_begin(self) -> None:
        """A backward pass begins."""
        if threading.get_ident() == self._step_thread:
            self._ready_ns = time.perf_counter_ns()

    def fetch(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """Time a fetch of the loop; one that loads for another belongs to that one."""
        if self._is_fetching or threading.get_ident() != self._step_thread:
            return call(*arguments)
        self._is_fetching = self._sees_input = True
        began_ns = time.perf_counter_ns()
        try:
            return call(*arguments)
        finally:
            self._input_ns += time.perf_counter_ns() - began_ns
            self._is_fetching = False

    def _finish_row(self, number: int) -> None:
        row = self._row
        row.end_ns = time.time_ns()
        self._row = _Row(number, row.end_ns)
        if not row.steps:
            return
        self._rows.append(row)
        if len(self._rows) < MOST_ROWS:
            return
        # Rows begin at multiples of their width, so that those of all ranks are of the same steps.
        self._width *= 2
        merged: list[_Row] = []
        for each in self._rows:
            if merged and merged[-1].first // self._width == each.first // self._width:
                merged[-1].add(each)
            else:
                merged.append(each)
        self._rows = merged
        if number % self._width:
            self._row = merged.pop()  # goes on

    # --- beside the steps -------------------------------------------------------------------------

    def _begin_thread(self, number: int) -> None:
        self._step_thread = threading.get_ident()
        self._row = _Row(number - 1, self._row.start_ns)
        self._thread.start()

    def _look(self) -> None:
        # A failure here must neither end the training nor be told of again and again.
        with suppress(Exception):
            while not self._thread.ends.wait(_LOOK_EVERY_S):
                look = self._sampler.sample()
                self._row.add_look(look)
                now_s = time.monotonic()
                if now_s - self._written_s >= self._every_s or not self._points:
                    self._written_s = now_s
                    self._write_point(look)
                if now_s - self._began_s >= max(_FIRST_FILE_S, _RENEW * self._file_s):
                    self.write()

    @property
    def _every_s(self) -> float:
        return float(_WRITE_EVERY_S * 2 ** (self._points // _MOST_POINTS))

    def _write_point(self, look: Mapping[str, float]) -> None:
        (steps, step_ns, input_ns), self._totals = self._totals, (0, 0, 0)
        values = dict(_scalars_of(look))
        if steps:
            values["step_ms"] = step_ns / steps / 1e6
            if self._sees_input:
                values["input_wait_ms"] = input_ns / steps / 1e6
        if not values:
            return
        if self._scalars is None:
            self._scalars = ScalarWriter(self._logdir / SCALARS / self._worker())
        self._points += 1
        self._scalars.add(
            self._number, {f"whole_run/{name}": each for name, each in values.items()}
        )

    def write(self) -> None:
        """Write the file that reports read, if there is anything to tell."""
        timers = self.timers()
        if not timers.steps:
            return
        self._file_s = time.monotonic() - self._began_s
        path = self._logdir / f"{timers.worker}{RUN_SUFFIX}"
        partial = path.with_suffix(".partial")
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            partial.write_bytes(msgspec.json.encode(timers))
            partial.replace(path)
            if path not in self._files:
                self._files.append(path)

    def close(self) -> None:
        """Write what is known now, and stop."""
        if os.getpid() != self._pid:  # a fork of the program
            return
        self._end()
        with suppress(Exception):
            if self._scalars is not None:
                self._write_point({})
                self._scalars.close()
            self.write()

    def discard(self) -> None:
        """Delete what was written: it was not of steps."""
        self._end()
        if self._scalars is not None:
            self._scalars.close()
            self._files.append(self._scalars.path)
        for path in self._files:
            with suppress(OSError):
                path.unlink()

    def _end(self) -> None:
        self._thread.ends.set()
        _unwatch(self)
        self._thread.join(_LOOK_EVERY_S)
        self._sampler.close()

    def timers(self) -> RunTimers:
        """What is known up to now."""
        rows = [row for row in [*self._rows, self._row] if row.steps]
        worker = self._worker()
        rank = _RANK.fullmatch(worker)
        return RunTimers(
            worker=worker,
            rank=int(rank[1]) if rank is not None else 0,
            first_step=tuple(row.first for row in rows),
            start_ns=tuple(row.start_ns for row in rows),
            end_ns=tuple(row.end_ns or time.time_ns() for row in rows),
            steps=tuple(row.steps for row in rows),
            step_ns=tuple(row.step_ns / row.steps for row in rows),
            input_ns=tuple(row.input_ns / row.steps for row in rows) if self._sees_input else (),
            ready_ns=tuple(
                row.ready_ns / row.ready_steps if row.ready_steps else None for row in rows
            ),
            device=self._device(rows) if any(row.device for row in rows) else None,
        )

    def _device(self, rows: list[_Row]) -> DeviceTimers:
        def means(name: str) -> tuple[float | None, ...]:
            return tuple(row.mean(name) for row in rows)

        return DeviceTimers(
            name=self._sampler.name,
            max_clock_hz=self._sampler.max_clock_hz,
            power_limit_w=self._sampler.power_limit_w,
            utilization=means("utilization"),
            memory_bytes=means("memory_bytes"),
            clock_hz=means("clock_hz"),
            power_w=means("power_w"),
            temperature_c=means("temperature_c"),
            reduced={reason: means(reason) for reason in (*HEAT, POWER_CAP)},
        )


_SCALARS: Final = (
    ("gpu_utilization_pct", "utilization", 100.0),
    ("gpu_memory_gib", "memory_bytes", 1 / (1 << 30)),
    ("gpu_clock_mhz", "clock_hz", 1e-6),
    ("gpu_power_w", "power_w", 1.0),
    ("gpu_temperature_c", "temperature_c", 1.0),
)


def _scalars_of(look: Mapping[str, float]) -> Iterator[tuple[str, float]]:
    """The known values of a look at the GPU, in the units that people use."""
    yield from ((tag, look[name] * scale) for tag, name, scale in _SCALARS if name in look)
    reasons = [look[reason] for reason in (*HEAT, POWER_CAP) if reason in look]
    if reasons:
        yield "gpu_clocks_reduced", max(reasons)


class ScalarWriter:
    """Writes points for TensorBoard, in a file of a directory that nothing else uses.

    TensorBoard's own writer imports a thousand modules. That takes half a second, in which every
    step of a fast loop waits for Python's lock again and again.
    """

    def __init__(self, directory: Path) -> None:
        """Create the file.

        Raises:
            OSError: If it cannot be created.
        """
        directory.mkdir(parents=True, exist_ok=True)
        name = f"events.out.tfevents.{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}"
        self.path = directory / name
        self._file = self.path.open("wb")
        self._write(_of_length(3, b"brain.Event:2"))

    def add(self, step: int, values: Mapping[str, float]) -> None:
        """Append one point of each tag."""
        summary = b"".join(
            _of_length(1, _of_length(1, tag.encode()) + b"\x15" + struct.pack("<f", value))
            for tag, value in values.items()
        )
        self._write(b"\x10" + _varint(step) + _of_length(5, summary))

    def close(self) -> None:
        """Write the rest."""
        self._file.close()

    def _write(self, fields: bytes) -> None:
        """Write an event as a TFRecord: its length and itself, each with a checksum."""
        event = b"\x09" + struct.pack("<d", time.time()) + fields
        for part in (struct.pack("<Q", len(event)), event):
            self._file.write(part + struct.pack("<I", _checksum(part)))
        self._file.flush()


def _varint(value: int) -> bytes:
    digits = [value >> shift & 0x7F for shift in range(0, max(value.bit_length(), 1), 7)]
    return bytes([digit | 0x80 for digit in digits[:-1]] + digits[-1:])


def _of_length(field: int, content: bytes) -> bytes:
    """A field of a protocol buffer that holds a text or another message."""
    return bytes([field << 3 | 2]) + _varint(len(content)) + content


def _checksum(data: bytes) -> int:
    """The masked CRC-32C of a TFRecord (tsl/lib/io/record_writer.h)."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


# --- what the loop calls --------------------------------------------------------------------------

_timers: StepTimers | None = None
"""Those of the loop that runs now; the calls below are watched for as long as the process lives."""
_is_watching = False


def _watch(timers: StepTimers) -> None:
    """Tell timers of each fetch from a DataLoader, and of each backward pass, from now on."""
    global _timers, _is_watching
    _timers = timers
    if _is_watching:
        return
    _is_watching = True
    when_imported(
        {
            "torch.utils.data.dataloader": _watch_fetches,
            "torch.autograd": _watch_gradients,
        }
    )


def _unwatch(timers: StepTimers) -> None:
    global _timers
    if _timers is timers:
        _timers = None


def _watch_fetches(module: Any) -> None:
    iterators = module._BaseDataLoaderIter
    fetch = iterators.__next__

    @wraps(fetch)
    def timed(iterator: Any) -> Any:
        return fetch(iterator) if _timers is None else _timers.fetch(fetch, iterator)

    iterators.__next__ = timed


def _watch_gradients(autograd: Any) -> None:
    backward = autograd.backward

    @wraps(backward)
    def timed(*arguments: Any, **keywords: Any) -> Any:
        if _timers is not None:
            _timers.gradients_begin()
        return backward(*arguments, **keywords)

    autograd.backward = timed
