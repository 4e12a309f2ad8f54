"""Parallel dimensions of real profiles.

The figures were summed up from the files' events by a script of a few lines: the union of the
kernels whose names contain `nccl`, clipped to the steps, with and without the other kernels.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tb_perfadvisor import load
from tb_perfadvisor.signals import reference_worker
from tb_perfadvisor.signals.ranks.parallel_dimensions import (
    Dimension,
    ParallelDimension,
    ProcessGroup,
    parallel_dimensions,
)


def dimensions(path: Path) -> dict[Dimension, ParallelDimension]:
    (run,) = load(path)
    return {row.dimension: row for row in parallel_dimensions(reference_worker(run))}


def milliseconds(row: ParallelDimension) -> tuple[float, float]:
    return round(row.cost.exposed_ns / 1e6, 3), round(row.cost.hidden_ns / 1e6, 3)


def test_eight_tensor_parallel_ranks(corpus: Path) -> None:
    found = dimensions(corpus / "astra-sim" / "megatron_tp8")
    assert list(found) == [Dimension.TENSOR]
    row = found[Dimension.TENSOR]
    assert (row.cost.count, milliseconds(row)) == (84, (241.191, 0.0))
    # 81 times 2048 x 4 x 4096 numbers of 16 bits (80 times) or of their transpose (once), three
    # times 4 x 2048 of 32 bits: 81 x 67,108,864 + 3 x 32,768 bytes.
    assert row.cost.bytes_per_step == 81 * 67_108_864 + 3 * 32_768
    # The shortest durations over the ranks sum to 50.099 ms.
    assert row.is_transfer_known
    assert row.cost.algorithm_bytes_per_s == pytest.approx(5_435_916_288 / 50.099e-3)
    assert row.cost.bus_bytes_per_s == pytest.approx(1.75 * 5_435_916_288 / 50.099e-3)
    assert row.workers is not None
    # On rank 1, transfer takes 50.1 ms and waiting 431.
    exposed_ms = [241.191, 481.306, 389.163, 451.654, 478.999, 474.684, 256.838, 463.625]
    assert [round(ns / 1e6, 3) for ns in row.workers.exposed_ns.tolist()] == exposed_ms


def test_gradients_and_buffers_are_data_parallel(corpus: Path) -> None:
    row = dimensions(corpus / "hta" / "nccl_parser_config")[Dimension.DATA]
    parts = {entry.operation: entry.cost for entry in row.operations}
    assert {name: cost.count for name, cost in parts.items()} == {"all-reduce": 15, "broadcast": 6}
    assert round(parts["all-reduce"].exposed_ns / 1e6, 3) == 39.445
    assert round(parts["all-reduce"].hidden_ns / 1e6, 3) == 7.317
    assert row.groups == (ProcessGroup("0", "default_pg", "[0, 1]", 2),)


def test_gradients_of_an_activation_checkpointed_resnet(corpus: Path) -> None:
    row = dimensions(corpus / "tracelens" / "mi300" / "resnet_act_checkpoint")[Dimension.DATA]
    (sent,) = (entry.cost for entry in row.operations if entry.operation == "all-reduce")
    # INDEX: every step all-reduces 2,873,320 + 8,816,192 bfloat16 elements.
    assert sent.bytes_per_step == 2 * (2_873_320 + 8_816_192)


def test_embedding_tables_beside_data_parallel_gradients(corpus: Path) -> None:
    found = dimensions(corpus / "hta" / "trace_diff_control")
    assert list(found) == [Dimension.EMBEDDING, Dimension.DATA]
    tables, gradients = found.values()
    assert (tables.cost.count, milliseconds(tables)) == (42, (83.443, 47.212))
    assert (gradients.cost.count, milliseconds(gradients)) == (18, (4.478, 28.402))


def test_a_group_of_all_ranks_without_a_sign_stays_unknown(corpus: Path) -> None:
    """Four ranks merged into one file, filtered to NCCL's kernels."""
    found = dimensions(corpus / "amd" / "MLExamples_TraceLens_fused_traces_merged_nccl_only")
    assert list(found) == [Dimension.UNKNOWN]
    assert found[Dimension.UNKNOWN].groups[0].description == "default_pg"
