"""The time of operators and checksums on a device that is played by the CPU."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from tb_perfadvisor.instrument.examination.clocks import DeviceClock  # noqa: E402
from tb_perfadvisor.instrument.examination.watching import Watching  # noqa: E402


class Device:
    """Runs what it is given one after the other, behind the host."""

    def __init__(self) -> None:
        self.now_ms = 0.0
        self.waits = 0

    def work(self, ms: float) -> None:
        self.now_ms += ms

    def event(self, **_: object) -> SimpleNamespace:
        event = SimpleNamespace(at_ms=0.0)
        event.record = lambda: setattr(event, "at_ms", self.now_ms)
        event.synchronize = self.wait
        event.elapsed_time = lambda end: end.at_ms - event.at_ms
        return event

    def wait(self) -> None:
        self.waits += 1


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    """Each operator of no size takes it 10 µs, most of which is the call."""
    played = Device()
    zeros = torch.zeros

    class Nothing:
        def add_(self, _: int) -> None:
            played.work(0.010)

    monkeypatch.setattr(torch.cuda, "Event", played.event)
    monkeypatch.setattr(
        torch.cuda, "current_stream", lambda: SimpleNamespace(synchronize=played.wait)
    )
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(
        torch,
        "zeros",
        lambda *size, device=None, **rest: Nothing() if device == "cuda" else zeros(*size, **rest),
    )
    return played


def test_the_call_is_no_time_of_the_device(device: Device) -> None:
    clock = DeviceClock()
    clock.begin()
    device.work(0.010)
    assert clock.end().device_ns == pytest.approx(2_000, abs=10)
    clock.begin()
    device.work(1.010)
    assert clock.end().device_ns == pytest.approx(1_002_000, abs=10)
    clock.begin()
    assert clock.end().device_ns == 0


def test_a_graph_that_is_captured_is_left_alone(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    watching = Watching()
    x = torch.ones(4)
    with watching:
        x + 1
        before = device.waits
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
        assert torch.equal(x + 2, torch.full((4,), 3.0))
    assert [call.name for call in watching.calls] == ["add"]
    assert device.waits == before
    assert not watching.is_on
