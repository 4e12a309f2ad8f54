"""What happens once before a program begins is no part of it."""

from __future__ import annotations

import pytest

from tb_perfadvisor.engine.analyze import analyze_run
from tb_perfadvisor.engine.config import Config
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.testing import TraceBuilder, ms, run_of
from tb_perfadvisor.trace import CopyDirection, Trace


def loaded(load_ms: int = 60, *, batch_ms: int = 0, kernels: int = 40) -> Trace:
    """Copies of a model for some time, then kernels of 0.9 ms each millisecond.

    Before every tenth kernel there may be a pause, in which a batch is copied.
    """
    builder = TraceBuilder().device("NVIDIA A100-SXM4-80GB")
    at = 0
    for k in range(load_ms):
        builder.copy(CopyDirection.HOST_TO_DEVICE, ms(k), ms(k + 1), size_bytes=2**20)
    at = load_ms
    for k in range(kernels):
        if batch_ms and k % 10 == 5:
            builder.copy(CopyDirection.HOST_TO_DEVICE, ms(at), ms(at + batch_ms), size_bytes=2**20)
            at += batch_ms
        builder.kernel(f"gemm {k}", ms(at), ms(at + 0.9))
        at += 1
    return builder.build()


def window(trace: Trace) -> tuple[float, float]:
    steps = Signals(run_of(trace)).steps
    return steps.window_start_ns / 1e6, steps.window_end_ns / 1e6


def test_copies_of_a_model_are_no_batches() -> None:
    # 60 copies of 1 MiB in 60 ms, then 40 kernels until 99.9 ms.
    trace = loaded()
    assert window(trace) == (60, 99.9)
    analysis = analyze_run(run_of(trace), Config())
    (note,) = (note for note in analysis.notes if note.id == "set-up")
    assert note.message.startswith(
        "The first 60.0 ms of the device's work are set-up: 60 copies and fills of 60.0 MiB before "
        "the first kernel"
    )
    # It takes 60 of 99.9 ms, so the headline's badge says so.
    assert analysis.trust.reasons[0].in_short.startswith("most of the recording is set-up")
    assert not {"exposed-copies", "pageable-copies"} & {f.rule.id for f in analysis.findings}


def test_little_set_up_does_not_lead() -> None:
    analysis = analyze_run(run_of(loaded(10)), Config())
    assert [note.severity for note in analysis.notes if note.id == "set-up"] == ["info"]
    assert analysis.trust.level == "solid"


@pytest.mark.parametrize(("load_ms", "start"), [(2, 0), (3, 3)])
def test_just_below_and_just_above_the_limit(load_ms: int, start: float) -> None:
    # 5 % of 2 + 39.9 ms are 2.1 ms, and of 3 + 39.9 ms 2.15.
    assert window(loaded(load_ms))[0] == start


@pytest.mark.parametrize(("batch_ms", "start"), [(9, 20), (10, 0)])
def test_copies_that_recur_are_a_part_of_the_program(batch_ms: int, start: float) -> None:
    # The pause is 0.1 ms longer, and half of 20 ms counts as long.
    assert window(loaded(20, batch_ms=batch_ms))[0] == start


def test_without_kernels_copies_are_the_program() -> None:
    assert window(loaded(20, kernels=0)) == (0, 20)
