"""What the host does while the device waits."""

from __future__ import annotations

import pytest

from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.serving.server_steps import Phase, host_phases, phase_of
from tb_perfadvisor.testing import draw, host, ms, run_of
from tb_perfadvisor.trace import EventKind


@pytest.mark.parametrize(
    ("name", "phase"),
    [
        # Frames of recorded traces.
        ("vllm/v1/worker/gpu_model_runner.py(931): _update_states", Phase.INPUTS),
        ("vllm/v1/worker/gpu_model_runner.py(1518): _prepare_inputs", Phase.INPUTS),
        ("vllm/v1/worker/gpu_model_runner.py(3102): _model_forward", Phase.MODEL),
        ("vllm/v1/engine/output_processor.py(80): process_outputs", Phase.RESULTS),
        ("sglang/srt/managers/schedule_batch.py(2040): prepare_for_decode", Phase.INPUTS),
        ("sglang/srt/managers/schedule_batch.py(91): filter_batch", Phase.SCHEDULING),
        ("sglang/srt/managers/utils.py(56): copy_to_cpu", Phase.RESULTS),
        ("nn.Module: GptOssForCausalLM_0", Phase.MODEL),
        ("sglang/srt/managers/scheduler.py(3924): dispatch_event_loop", None),
        ("torch/utils/_contextlib.py(120): decorate_context", None),
    ],
)
def test_names_of_phases(name: str, phase: Phase | None) -> None:
    assert phase_of(name) is phase


def test_idle_goes_to_the_innermost_phase() -> None:
    legend = {
        "d": host("execute_context_0(0)_generation_4(4)"),
        "s": host("vllm/v1/core/sched/scheduler.py(99): schedule", EventKind.PYTHON),
        "i": host("vllm/v1/worker/gpu_model_runner.py(9): _prepare_inputs", EventKind.PYTHON),
        "p": host("numpy/core.py(1): cumsum", EventKind.PYTHON),
        "G": host("cudaGraphLaunch", EventKind.LAUNCH),
    }
    trace = draw(
        """
        cell 1ms
        main   |ddddd.ssddddd.ssddddd.ssddddd.ss|
        main   |ii......ii......ii......ii......|
        main   |.p.G.....p.G.....p.G.....p.G....|
        gpu 7  |...KK......KK......KK......KK...|
        """,
        legend=legend,
    )
    found = host_phases(Signals(run_of(trace)))
    # In each of the three steps that count, the device is idle for 6 ms: 2 ms of scheduling, 2 ms
    # of preparing inputs, half of it in numpy, 1 ms inside the annotation and 1 ms outside of all.
    assert {part.phase: part.idle_ns for part in found} == {
        Phase.SCHEDULING: ms(6),
        Phase.INPUTS: ms(6),
        Phase.OTHER: ms(3),
        Phase.UNKNOWN: ms(3),
    }
    (inputs,) = [part for part in found if part.phase is Phase.INPUTS]
    assert sorted(inputs.code) == [
        ("numpy/core.py(1): cumsum", ms(3)),
        ("vllm/v1/worker/gpu_model_runner.py(9): _prepare_inputs", ms(3)),
    ]
