"""Devices of real profiles are recognized, also without their names."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from tb_perfadvisor import load
from tb_perfadvisor.engine.analyze import analyze_run
from tb_perfadvisor.engine.config import Config
from tb_perfadvisor.hardware import find_device, identify
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.core.device import DeviceFacts
from tb_perfadvisor.testing import run_of
from tests.support.corpus_traces import read


def facts_of(corpus: Path, pattern: str) -> DeviceFacts:
    facts = Signals(run_of(read(corpus, pattern))).device_facts
    assert facts is not None
    return facts


def test_an_mi300_without_a_name(corpus: Path) -> None:
    facts = facts_of(corpus, "tracelens/inference_vllm*/*/*.gz")
    assert facts.name == "AMD Instinct MI300X"
    assert "compute capability 9.4, 304 multiprocessors, 192 GiB" in facts.evidence


@pytest.mark.parametrize(
    "run",
    [
        "plugin_resnet50_num_workers_0",
        "resnet50_autograd_api_num_workers_0",
        "resnet50_profiler_api_num_workers_0",
        "resnet50_profiler_api_num_workers_4",
    ],
)
def test_a_volta_by_its_kernels_is_told_to_compute_in_16_bits(corpus: Path, run: str) -> None:
    trace = read(corpus, f"kineto-old/{run}/*.gz")
    analysis = analyze_run(run_of(trace), Config(select=("full-precision-compute",)))
    facts = analysis.signals.device_facts
    assert facts is not None
    assert (facts.name, facts.multiprocessors) == ("NVIDIA V100 or V100S", 80)
    (ranked,) = analysis.findings
    assert ranked.severity in ("high", "medium")
    assert "bfloat16" not in ranked.finding.remedies[0].text.split("has no")[0]


def test_xplanes_do_not_name_gpus(corpus: Path) -> None:
    gpu = facts_of(corpus, "xprof-demo/**/GPU-multi-worker/*.xplane.pb")
    assert gpu.name == "Tesla V100-SXM2-16GB"
    newer = facts_of(corpus, "tracelens-jax/test_data_jax_te*/**/*.xplane.pb")
    assert newer.name == "AMD Instinct MI355X"  # its clock is 2.4 GHz, that of the MI350X 2.2


@pytest.mark.parametrize(
    "pattern",
    [
        "kineto/resnet50_num_workers_4/*.gz",  # V100 in a DGX Station
        "hta/trace_diff_test/*.gz",  # V100 SXM2
        "param/linear/*.gz",  # RTX 2080 Ti
        "hta/nccl_parser_config/*/*.gz",  # A100
        "tugot17/llama_tp2_ann/rank0*.gz",  # RTX 4090
        "quentin-tutorial/transformer/*.json",  # H100
        "tracelens/eval_moe_nv/moe_05*/*.gz",  # B300
        "tracelens/mi210/*/*/*.gz",
        "tracelens/mi300/resnet_act_checkpoint/*.gz",
    ],
)
def test_properties_and_kernels_agree_with_the_name(corpus: Path, pattern: str) -> None:
    trace = read(corpus, pattern)
    device = trace.devices[0]
    true = find_device(
        device.name, multiprocessors=device.multiprocessors, memory_bytes=device.memory_bytes
    )
    assert true is not None
    names = [trace.strings[name] for name in set(trace.events.name[trace.kernels.row].tolist())]
    for blank in (
        replace(device, name=""),
        replace(device, name="", compute_capability="", memory_bytes=None),
    ):
        found = identify(blank, lambda: names)
        assert found.evidence
        assert found.spec is not None
        assert true.name in (found.candidates or (found.spec.name,))
        for form, rate in found.spec.peaks.tensor.items():
            assert rate <= true.peaks.tensor[form] <= 1.2 * rate


def test_an_unknown_gpu_is_told_to_compute_in_16_bits_by_a_rule_of_thumb(corpus: Path) -> None:
    # The overview of a TensorFlow profile says `GPU`, and 100 % of 32-bit compute.
    (run,) = load(corpus / "xprof-demo/plugins/profile/GPU-input-bound")
    analysis = analyze_run(run, Config(select=("full-precision-compute",)))
    (ranked,) = analysis.findings
    assert ranked.severity in ("medium", "low")
    assert ranked.finding.saving is not None
    assert ranked.finding.saving.basis == "heuristic"
    assert "whose rates are unknown" in ranked.finding.summary
