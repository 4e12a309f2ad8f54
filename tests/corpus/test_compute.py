"""Device work is recognized on real profiles."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tb_perfadvisor import analyze
from tb_perfadvisor.contract.model.findings import TableEvidence
from tb_perfadvisor.rules.base import Rule
from tb_perfadvisor.rules.compute.forms import (
    LayoutConversion,
    RedundantCopies,
    UnfusedAttention,
    UnfusedOperators,
)
from tb_perfadvisor.rules.finding import Finding, Table
from tb_perfadvisor.rules.input.copies import PageableCopies
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.device.device_work import operators_of, work_rows
from tb_perfadvisor.signals.device.recomputation import recomputation
from tb_perfadvisor.signals.work.fusible_work import fusible_work
from tb_perfadvisor.testing import find, run_of
from tb_perfadvisor.trace import KernelFamily
from tb_perfadvisor.trace.integer_groups import is_in
from tb_perfadvisor.trace.tables import Int32
from tests.support.corpus_traces import read


def found(corpus: Path, rule: type[Rule], pattern: str) -> tuple[Finding, ...]:
    return find(rule, run_of(read(corpus, pattern))) or ()


def table(finding: Finding) -> Table:
    (table,) = [evidence for evidence in finding.evidence if isinstance(evidence, Table)]
    return table


def test_transposes_are_half_of_what_a_mostly_idle_device_does(corpus: Path) -> None:
    # The corpus' index: half of the kernel time, of a device that is idle for 97 % of the time.
    (finding,) = found(corpus, LayoutConversion, "tracelens-jax/jax08_conv/**/*.xplane.pb")
    assert "46.5 % of the device's busy time" in finding.summary
    assert str(table(finding).rows[0][3]).endswith("generate_conv_trace.py:23")
    assert len(found(corpus, LayoutConversion, "hta/nccl_parser_config/*/*.gz")) == 1
    assert len(found(corpus, LayoutConversion, "tracelens/mi210/*/*/*.gz")) == 1
    assert found(corpus, LayoutConversion, "kineto/resnet50_num_workers_0/*") == ()


def test_copies_are_traced_to_the_line_that_asks_for_them(corpus: Path) -> None:
    (finding,) = found(corpus, RedundantCopies, "tracelens/h100/Qwen*/*.gz")
    operator, _, _, source, *_ = table(finding).rows[0]
    assert operator == "aten::contiguous"
    assert source == "integrations/sdpa_attention.py:18 sdpa_attention_forward"


@pytest.mark.parametrize(
    ("pattern", "largest"),
    [
        # 8 clips of 12 heads; 16 heads of one image: the models' own configurations.
        ("tracelens/h100/facebook_timesformer*/*.gz", "96 × 3137 × 3137, heads of 64"),
        ("tracelens/h100/google_owlv2*/*.gz", "16 × 5185 × 5185, heads of 64"),
    ],
)
def test_attention_without_a_fused_kernel_is_found(
    corpus: Path, pattern: str, largest: str
) -> None:
    (finding,) = found(corpus, UnfusedAttention, pattern)
    assert table(finding).rows[0][0] == largest


@pytest.mark.parametrize(
    "pattern", ["tracelens/h100/Qwen*/*.gz", "sam-fast/asdf_True_02c6e091/*.gz"]
)
def test_fused_attention_is_left_alone(corpus: Path, pattern: str) -> None:
    assert found(corpus, UnfusedAttention, pattern) == ()


def test_fusion_comes_first_for_a_model_in_eager_mode(corpus: Path) -> None:
    """63 % of the kernel time is spent in memory-bound operators."""
    report = analyze(corpus / "tracelens" / "h100" / "Qwen_Qwen1.5-0.5B-Chat")
    assert report.first is not None
    assert report.first.rule_id == "unfused-operators"
    shown = report.findings[report.first.index]
    assert shown.saving is not None
    assert 0.30 <= shown.saving.share_expected <= 0.55
    assert shown.saving.basis == "modeled"
    table = shown.evidence[0]
    assert isinstance(table, TableEvidence)
    operators, source, count, moved, *_ = table.rows[0]
    assert operators == "add → copy_ → pow → mean → add → rsqrt → …"
    assert str(source).startswith("qwen2/modeling_qwen2.py:")
    assert isinstance(count, int)
    assert isinstance(moved, int)
    # Bytes for each number of a norm after a residual: a sum in 16 bits (6), a cast to 32 (6), its
    # square (8), their mean (4), a scaling (8), a cast to 16 (6), and the weight (4).
    assert moved / count == pytest.approx(42 * 16 * 559 * 1024, rel=0.01)


def memory_bound_near_products(signals: Signals) -> tuple[Int32, Int32]:
    """Eager and compiled kernels of Segment Anything's mask decoder, products excluded.

    In the decoder, at most 40 kernels follow a product before the next one. What the program does
    with the masks takes hundreds.
    """
    trace, rows = signals.trace, work_rows(signals)
    rows = rows[np.argsort(trace.events.start_ns[rows], kind="stable")]
    families = trace.by_event(trace.kernels.row, trace.kernels.family, KernelFamily.OTHER)[rows]
    products = (KernelFamily.MATMUL, KernelFamily.ATTENTION, KernelFamily.CONVOLUTION)
    is_product = is_in(families, products)
    stretch = np.cumsum(is_product)
    is_near = (np.bincount(stretch)[stretch] <= 40) & (stretch > 0) & (stretch < stretch.max())
    operators = operators_of(signals, rows)
    compiled = trace.events.name[operators] == trace.strings.index("Torch-Compiled Region")
    compiled &= operators >= 0
    return rows[is_near & ~is_product & ~compiled], rows[~is_product & compiled]


def test_a_fused_decoder_takes_about_what_its_compiled_profile_takes(corpus: Path) -> None:
    """Two profiles of one module with the same products: eager in the first, compiled later."""
    before, after = (
        Signals(run_of(read(corpus, pattern)))
        for pattern in ("pytorch-labs/01_143a949f*/*.gz", "sam-fast/asdf_True_10b61b2f/*.gz")
    )
    eager, _ = memory_bound_near_products(before)
    # What graphs replay was compiled in both.
    eager = eager[~is_in(eager, before.trace.captured.row)]
    _, compiled = memory_bound_near_products(after)
    now_ms = before.trace.events.duration_ns[eager].sum() / 1e6
    fused_ms = after.trace.events.duration_ns[compiled].sum() / 1e6
    work = fusible_work(before)
    inside = is_in(work.rows, eager)
    duration_ns = before.trace.events.duration_ns[work.rows[inside]]
    saved_ms, low_ms = (
        float((duration_ns * (1 - share[work.kernel[inside]])).sum()) / 1e6
        for share in (work.expected_share, work.most_share)
    )
    assert (now_ms, fused_ms) == (pytest.approx(232.9, abs=0.1), pytest.approx(65.1, abs=0.1))
    gain_ms = now_ms - fused_ms
    assert 0.6 * gain_ms <= low_ms <= saved_ms <= gain_ms


@pytest.mark.parametrize(
    "pattern",
    ["tracelens/torch_compile_triton/*.gz", "param/linear/*", "tracelens/inference_vllm*/*/*.gz"],
)
def test_compiled_kernels_and_parameters_are_not_to_be_fused(corpus: Path, pattern: str) -> None:
    assert found(corpus, UnfusedOperators, pattern) == ()


def test_batches_from_pageable_memory(corpus: Path) -> None:
    # 19.3 MB a batch in 3.0 ms with four workers, in 1.9 ms without: 6.4 and 10.1 GB/s.
    (finding,) = found(corpus, PageableCopies, "kineto/resnet50_num_workers_4/*")
    assert table(finding).rows[0][2] == "[[32,3,224,224],[32,3,224,224],[]]"
    assert found(corpus, PageableCopies, "kineto/resnet50_num_workers_0/*") == ()


def test_a_resnet_recomputes_its_activations(corpus: Path) -> None:
    """TraceLens counts 4.12 ms of recomputed kernels in three steps; memsets add 0.09 ms."""
    signals = Signals(run_of(read(corpus, "tracelens/mi300/resnet_act_checkpoint/*.gz")))
    found = recomputation(signals)
    assert found.launched_ns == pytest.approx(4.12e6 + 0.09e6, rel=0.01)
    report = analyze(corpus / "tracelens" / "mi300" / "resnet_act_checkpoint")
    (shown,) = (finding for finding in report.findings if finding.rule_id == "recompute")
    # Whether memory is free was not recorded.
    assert shown.saving is not None
    assert (shown.saving.low_ns, shown.severity) == (0, "low")
    assert "recomputes activations in the backward pass" in shown.summary
