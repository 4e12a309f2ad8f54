"""Which operators of real profiles run on the host."""

from __future__ import annotations

from pathlib import Path

from tb_perfadvisor import load
from tb_perfadvisor.rules.placement.devices import HostPlacedOperators
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.testing import find


def test_shape_propagation_of_dtensor_is_not_work(corpus: Path) -> None:
    (run,) = load(corpus / "tugot17/llama_tp2_ann")
    for rank in range(2):
        # The index: aten::addmm and others only propagate shapes, on tensors without data.
        assert len(Signals(run, rank).placement.host_rows) == 0, rank
    assert find(HostPlacedOperators, run) == ()


def test_parameters_initialized_on_the_host_are_work(corpus: Path) -> None:
    # The index: uniform_, the initialization of parameters, runs on the CPU inside the step.
    (run,) = load(corpus / "ncompass-tech/examples_flops_example_test_files_test_trace")
    (finding,) = find(HostPlacedOperators, run) or ()
    assert finding.saving is not None
    assert finding.saving.expected_ns >= 2_000_000
