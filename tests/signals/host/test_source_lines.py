from __future__ import annotations

import pytest

from tb_perfadvisor.contract.model import EventsEvidence
from tb_perfadvisor.report.build import encode_evidence
from tb_perfadvisor.rules.finding import Events
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.testing import draw, run_of
from tb_perfadvisor.testing.symbols import host
from tb_perfadvisor.trace import EventKind

# A kernel, launched by an operator inside frames: the user's, and the framework's around it.
TRACE = """
    cell 1ms
    step   |.....|
    main   |ppppp|
    main   |.PPP.|
    main   |..o..|
    gpu 7  |..KKK|
"""


@pytest.mark.parametrize(
    ("outer", "inner", "shown"),
    [
        # PyTorch 2.13 and TensorFlow / JAX 0.10 name Python frames so.
        (
            "/home/me/project/train.py(12): step",
            "torch/nn/modules/module.py(1751): _wrapped_call_impl",
            "project/train.py:12 step",
        ),
        ("train.py(12): step", "model.py(7): forward", "model.py:7 forward"),
        ("$train.py:12 step", "$pjit.py:250 cache_miss", "train.py:12 step"),
        ("C:\\work\\train.py(3): main", "<built-in method mm>", "work/train.py:3 main"),
        ("torch/optim/sgd.py(88): step", "nn.Module: Linear_0", None),
    ],
)
def test_the_innermost_frame_of_the_user(outer: str, inner: str, shown: str | None) -> None:
    frames = {"p": host(outer, EventKind.PYTHON), "P": host(inner, EventKind.PYTHON)}
    trace = draw(TRACE, legend=frames)
    signals = Signals(run_of(trace))
    evidence = encode_evidence(Events("Kernels", trace.rows(EventKind.KERNEL), 0), [signals])
    assert isinstance(evidence, EventsEvidence)
    assert [row.source for row in evidence.rows] == [shown]
