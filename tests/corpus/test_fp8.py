"""Advice on fp8 on profiles of real programs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tb_perfadvisor import analyze
from tb_perfadvisor.engine.config import Config
from tb_perfadvisor.report.report import Report

CONFIG = Config(select=("fp8-opportunity",))


def report(corpus: Path, pattern: str) -> Report:
    return analyze(next(iter(sorted(corpus.glob(pattern)))), CONFIG)


@pytest.mark.parametrize(
    ("pattern", "snippet"),
    [
        ("tracelens/inference_sglang_decode/*/*.gz", "--quantization fp8"),  # Qwen3-8B
        ("tracelens/inference_xdit_sd_3.5/*/*.gz", "quantize_(pipe.transformer"),
    ],
)
def test_inference_in_16_bits_is_told_what_fp8_would_take(
    corpus: Path, pattern: str, snippet: str
) -> None:
    (finding,) = report(corpus, pattern).findings
    assert finding.severity in ("medium", "low")
    assert finding.saving is not None
    assert finding.saving.basis == "heuristic"
    assert any(snippet in remedy.snippet for remedy in finding.remedies)
    assert not any("training" in remedy.snippet for remedy in finding.remedies)


@pytest.mark.parametrize(
    "pattern",
    [
        "tracelens/inference_vllm_prefilldecode_piecewise/*/*.gz",  # weights in mxfp4
        "tracelens/h100/google*/*.gz",  # attention and input take the time
        "sam-fast/asdf_True_02c6e091/*.gz",  # A100
        "astra-sim/megatron_tp8/rank0*",
    ],
)
def test_programs_that_cannot_gain_are_left_alone(corpus: Path, pattern: str) -> None:
    assert report(corpus, pattern).findings == []
