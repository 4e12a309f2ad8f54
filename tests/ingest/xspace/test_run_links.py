"""Runs on a TPU and their launches: numbers, order and clocks. Times in microseconds."""

from __future__ import annotations

from typing import Any

import pytest

from tb_perfadvisor.ingest.xspace.interpret.run_links import TPU_LAUNCH
from tb_perfadvisor.trace import EventKind, Trace
from tests.support.xspaces import Drawing

US = 1_000


class Loop:
    """Synchronous dispatch: each 1 ms a call, its launch 100 us later, a run of 600 us, a wait."""

    def __init__(self, *, clock_us: float = 0, runs: int = 4, waits: bool = True) -> None:
        self.drawing = Drawing()
        self.host = self.drawing.plane("/host:CPU")
        self.python = self.drawing.line(self.host, "python")
        self.tasks = self.drawing.line(self.host, "pjrt-tpu-tasks/7")
        self.tpu = self.drawing.plane("/device:TPU:0", device_type_string="TPU v5 lite")
        self.modules = self.drawing.line(self.tpu, "XLA Modules")
        self.operations = self.drawing.line(self.tpu, "XLA Ops")
        self.clock_us, self.runs = clock_us, runs
        for number in range(runs):
            self._host(self.python, "PjitFunction(step)", number, 0, 50)
            if waits:
                name = "$api.py:3154 block_until_ready"
                self._host(self.python, name, number, 60, 850 - 60)

    def _host(
        self, line: Any, name: str, number: int, at: float, took: float, **stats: Any
    ) -> None:
        start = (1_000 * (number + 10) + at) * US
        self.drawing.event(self.host, line, name, start, took * US, **stats)

    def launch(self, number: int, **stats: Any) -> None:
        self._host(self.tasks, "DoEnqueueProgram", number, 100, 20, **stats)

    def complete(self, number: int, **stats: Any) -> None:
        self._host(self.tasks, "CompleteCallbacks", number, 800, 10, **stats)

    def run(self, number: int, name: str = "jit_step(77)", **stats: Any) -> None:
        start = (1_000 * (number + 10) + 150 + self.clock_us) * US
        self.drawing.event(self.tpu, self.modules, name, start, 600 * US, **stats)
        self.drawing.event(self.tpu, self.operations, "%dot.1 = f32[8] dot()", start, 600 * US)

    def read(self) -> Trace:
        return self.drawing.read()


def launches(trace: Trace) -> list[str]:
    """What launched each operation, with its start, in order of start."""
    rows = trace.rows(EventKind.KERNEL)
    calls = trace.events.launched_by[rows].tolist()
    first = int(trace.events.start_ns[trace.rows(EventKind.ANNOTATION)].min())
    return [
        f"{trace.name(call)} {(int(trace.events.start_ns[call]) - first) // US}"
        if call >= 0
        else ""
        for call in calls
    ]


def delays_us(trace: Trace) -> list[int]:
    """From the start of each launch to its operation."""
    events, rows = trace.events, trace.rows(EventKind.KERNEL)
    return [
        int(events.start_ns[row] - events.start_ns[events.launched_by[row]]) // US
        for row in rows.tolist()
    ]


def test_runs_are_linked_by_their_number() -> None:
    loop = Loop()
    for number in range(4):
        loop.launch(number, run_id=number + 5, device_ordinal=0)
        loop.run(number, run_id=number + 5)
    # Another device counts its own runs.
    loop.launch(1, run_id=5, device_ordinal=1)
    assert launches(loop.read()) == [f"DoEnqueueProgram {1000 * n + 100}" for n in range(4)]


def test_runs_with_a_context_that_no_launch_has_are_linked_by_their_number() -> None:
    # libtpu with kernel profiling on a v6e: the context of the run is on the device alone.
    loop = Loop()
    for number in range(4):
        loop.launch(number, run_id=number + 5, device_ordinal=0)
        loop.run(number, run_id=number + 5, _ct=TPU_LAUNCH, _c=7_601_881_240_092_641_834 + number)
    assert launches(loop.read()) == [f"DoEnqueueProgram {1000 * n + 100}" for n in range(4)]


def test_runs_are_linked_by_the_context_where_both_sides_have_it() -> None:
    # Another process on the host launched the run with the same number.
    loop = Loop()
    for number in range(4):
        loop.launch(number, run_id=8 - number, device_ordinal=0, _pt=TPU_LAUNCH, _p=number + 1)
        loop.run(number, run_id=number + 5, _ct=TPU_LAUNCH, _c=number + 1)
    assert launches(loop.read()) == [f"DoEnqueueProgram {1000 * n + 100}" for n in range(4)]


def test_a_run_that_no_launch_numbers_is_linked_to_none() -> None:
    # The recording ended before the launch of the last run was written.
    loop = Loop()
    for number in range(4):
        loop.run(number, run_id=number + 5)
        if number < 3:
            loop.launch(number, run_id=number + 5, device_ordinal=0)
    assert launches(loop.read()) == [*(f"DoEnqueueProgram {1000 * n + 100}" for n in range(3)), ""]


def test_a_run_without_context_is_not_the_run_of_context_0() -> None:
    loop = Loop()
    for number in range(3):
        loop.launch(number, _pt=TPU_LAUNCH, _p=number)
        loop.run(number, _ct=TPU_LAUNCH, _c=number)
    loop.run(3)
    assert launches(loop.read()) == [*(f"DoEnqueueProgram {1000 * n + 100}" for n in range(3)), ""]


def test_without_launches_the_calls_of_the_function_are_linked_in_order_of_run_id() -> None:
    loop = Loop()
    for number in (2, 0, 3, 1):
        loop.run(number, run_id=number + 5)
    assert launches(loop.read()) == [f"PjitFunction(step) {1000 * n}" for n in range(4)]


def test_calls_are_not_linked_if_their_number_differs_from_that_of_the_runs() -> None:
    loop = Loop()
    for number in range(3):
        loop.run(number, run_id=number + 5)
    assert launches(loop.read()) == ["", "", ""]


def test_calls_are_not_linked_to_runs_before_them() -> None:
    # The recording began during the first run, and ended before the last one.
    loop = Loop(clock_us=-1_000)
    for number in range(4):
        loop.run(number, run_id=number + 5)
    assert launches(loop.read()) == [""] * 4


def test_a_lambda_runs_the_program_lambda() -> None:
    loop = Loop(runs=0)
    for number in range(3):
        loop._host(loop.python, "PjitFunction(<lambda>)", number, 0, 50)
        loop.run(number, "jit__lambda(8)", run_id=number)
    assert all(launches(loop.read()))


def with_numbers(clock_us: float, *, completes: bool, waits: bool = True) -> Trace:
    return numbered(clock_us, completes=completes, waits=waits).read()


def numbered(clock_us: float, *, completes: bool, waits: bool = True) -> Loop:
    loop = Loop(clock_us=clock_us, waits=waits)
    for number in range(4):
        loop.launch(number, run_id=number, device_ordinal=0, _pt=TPU_LAUNCH, _p=number + 1)
        if completes:
            loop.complete(number, run_id=number, _ct=TPU_LAUNCH, _c=number + 1)
        loop.run(number, run_id=number, _ct=TPU_LAUNCH, _c=number + 1)
    return loop


@pytest.mark.parametrize("completes", [True, False])
@pytest.mark.parametrize(
    ("clock_us", "delay_us"),
    [
        (0, 50),  # as drawn: 50 us after the launch, and until 100 us before the wait returns
        (40, 90),
        (-40, 10),
        # A device clock that is slow: the run begins when it is launched.
        (-400, 0),
        (-3_400, 0),
    ],
)
def test_a_launch_precedes_its_run(clock_us: float, delay_us: int, *, completes: bool) -> None:
    trace = with_numbers(clock_us, completes=completes)
    assert delays_us(trace) == [delay_us] * 4
    assert [note.id for note in trace.notes] == ["device-clock-shift"] * (delay_us == 0)


def test_a_run_precedes_the_event_that_reports_its_end() -> None:
    # 400 us late: the run would end at 1,150 us, and is reported at 800: 350 us earlier.
    trace = with_numbers(400, completes=True)
    assert delays_us(trace) == [50 + 400 - 350] * 4
    (note,) = trace.notes
    assert note.message.endswith("TPU 0 by 350 µs.")


def test_clocks_agree_to_within_microseconds() -> None:
    # Reported 5 us too early to begin after its launch: the launch decides.
    loop = Loop(clock_us=2_000)
    for number in range(4):
        loop.launch(number, run_id=number, device_ordinal=0)
        loop._host(loop.tasks, "CompleteCallbacks", number, 695, 10, run_id=number)
        loop.run(number, run_id=number)
    assert delays_us(loop.read()) == [0] * 4


def test_a_run_precedes_the_return_of_the_call_that_waits_for_it() -> None:
    # The wait returns at 850 us, 300 us before the end of the run.
    assert delays_us(with_numbers(400, completes=False)) == [50 + 400 - 300] * 4
    # Without a wait, a run may begin at any time after its launch.
    assert delays_us(with_numbers(400, completes=False, waits=False)) == [450] * 4


def test_a_wait_that_returns_before_the_first_launch_waits_for_no_run() -> None:
    loop = numbered(400, completes=False)
    # It returns at 50 us; the first launch is at 100 us.
    loop._host(loop.python, "$api.py:3154 block_until_ready", 0, 10, 40)
    assert delays_us(loop.read()) == [50 + 400 - 300] * 4


def test_a_host_that_waits_for_the_run_before_agrees_with_the_device() -> None:
    # Each wait returns 50 us after the end of the run before its own, so the clocks agree.
    trace = with_numbers(1_050, completes=False)
    assert delays_us(trace) == [1_100] * 4
    assert trace.notes == ()
