"""No remedy contradicts what the program is, by facts that were read from the raw events.

The table was written by hand from the files: dimensions of the inputs of convolutions, types of the
operands of products, names of the loader's iterators, ranges and optimizers, call stacks, and the
header's ranks and devices. `?` stands for what no event tells. *Formats* is the narrower type that
matrix units of the device (or the processor, slower) multiply.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

Json = dict[str, Any]
Facts = dict[str, str]

ONLY_IF = (
    (r"channels_last_3d|torch\.nn\.Conv3d", "convolution", "5"),
    (r"channels_last\b(?!_3d)", "convolution", "4"),
    (r"\btf\.|\bkeras\b|tf\.data", "framework", "tensorflow"),
    (r"\bjnp\.|\bjax\.", "framework", "jax"),
    (r"\btorch\.|torchrun", "framework", "pytorch"),
    (r"dataset\.(?:map|batch|prefetch|interleave)\(", "loader", "tfdata"),
    (r"in_order=|time_workers|num_workers=2 \* num_workers|num_workers=0\b", "loader", "workers"),
    (r"DataLoader\(|Load batches in worker", "loader", "single|workers"),
    (r"HIP_|MIOPEN|ROCm|amd-smi|rocm-smi", "vendor", "amd"),
    (r"nvidia-smi|\bCUDA_|NVLink|\bnsys\b|nvtx|flashinfer|fuse_allreduce", "vendor", "nvidia"),
    (r"allow_tf32|float32_matmul_precision|tf32=True", "vendor", "nvidia"),
    (r"backward\(\)|optimizer\.|converges|GradScaler|loss_fn|checkpoint\(", "mode", "training"),
    (r"torch\.compile\(|torch_compile=", "compiled", "eager"),
    (r"_inductor\.config(?!\._micro)", "compiled", "inductor"),
    (r"nvtx\.(?:range|annotate)|record_function\(", "ranges", "no"),
    (r"with_stack=True", "stacks", "no"),
    (r"allow_tf32|(?<!no\s)bfloat16|bf16", "formats", "bf16"),
)
"""What remedies name (regular expressions), and the facts (alternatives) that it needs."""

NARROWS = r"autocast\(|mixed_precision|GradScaler|\.to\(torch\.(?:bfloat16|float16)\)|bf16=True"
AMONG_RANKS = (
    r"torchrun|DistributedDataParallel|no_sync|NCCL|all_reduce|fully_shard|comm_hook"
    r"|ZeroRedundancy|numa-binding|bucket_cap|every rank|each rank"
)
OPTIMIZER = r"optim\.(\w+)\("
TENSOR_AND_REPLICAS = (
    r"--tensor-parallel-size (\w+) --data-parallel-size (\w+)",
    r"--tp-size (\w+) --dp-size (\w+)",
)
MESH = r"init_device_mesh\(\s*device\.type, \((\w+), (\w+)\)"


def facts() -> list[Facts]:
    with Path(__file__).with_name("program_facts.tsv").open(newline="") as file:
        return list(csv.DictReader(file, delimiter="\t"))


def contradictions(fact: Facts, rule_id: str, advice: str) -> Iterator[str]:
    """What a remedy (its text and code) says that cannot be of this program."""
    for words, column, needed in ONLY_IF:
        found = re.search(words, advice)
        if found and fact[column] not in ("?", *needed.split("|")):
            yield f"{found[0]!r} although {column} is {fact[column]}"
    if re.search(NARROWS, advice) and fact["products"] == "16" and "weight" not in rule_id:
        yield "16 bits, which its products have already"
    if re.search(AMONG_RANKS, advice) and fact["world"] == "1":
        yield "ranks, of which there is one"
    for name in re.findall(OPTIMIZER, advice):
        # An optimizer of its own may hold one of PyTorch's.
        if fact["optimizer"] not in ("?", name) and {fact["optimizer"], name} != {"Adam", "AdamW"}:
            yield f"{name} although the optimizer is {fact['optimizer']}"
    for pattern in TENSOR_AND_REPLICAS:
        for ranks, replicas in re.findall(pattern, advice):
            yield from _sizes(fact, ranks, replicas)
    for replicas, ranks in re.findall(MESH, advice):
        yield from _sizes(fact, ranks, replicas)


def _sizes(fact: Facts, ranks: str, replicas: str) -> Iterator[str]:
    if not (ranks.isdecimal() and replicas.isdecimal()):
        yield f"{ranks} × {replicas} are no numbers"
    elif int(ranks) * int(replicas) != int(fact["world"]) or int(ranks) >= int(fact["tensor"]):
        yield f"{ranks} × {replicas} of {fact['world']} devices, {fact['tensor']} in a group"


def test_no_remedy_contradicts_the_program(corpus_reports: list[Json]) -> None:
    faults, checked = [], 0
    for fact in facts():
        reports = [r for r in corpus_reports if f"{r['run']}/".startswith(f"{fact['profile']}/")]
        assert reports, fact["profile"]
        for report in reports:
            for finding in report["findings"]:
                for remedy in finding["remedies"]:
                    checked += 1
                    advice = f"{remedy['text']}\n{remedy['snippet'] or ''}"
                    faults += [
                        f"{fact['profile']} {finding['rule_id']}: {fault}"
                        for fault in contradictions(fact, finding["rule_id"], advice)
                    ]
    assert checked > 300
    assert faults == []


@pytest.mark.parametrize("which", ["slow", "fixed"])
def test_tokens_are_not_stored_in_8_bits(corpus_reports: list[Json], which: str) -> None:
    # The largest operand of the router's product is 65,536 x 1,024 tokens, not weights.
    name = f"compiled-tpu/routing_cumsum_v6e/{which}"
    (report,) = (report for report in corpus_reports if report["run"] == name)
    found = {finding["rule_id"] for finding in report["findings"]}
    assert found.isdisjoint({"wide-weights", "small-batch"})


def test_facts_are_of_many_kinds_of_programs() -> None:
    rows = facts()
    assert len(rows) >= 40
    for column in ("framework", "vendor", "mode", "convolution", "loader", "products", "compiled"):
        assert len({row[column] for row in rows} - {"?"}) >= 2, column


def test_contradictions_are_seen() -> None:
    fact = next(row for row in facts() if row["profile"].endswith("hyukjlee_vllm_mi300x"))
    said = (
        ("model.to(memory_format=torch.channels_last)", "convolution is -"),
        ("vllm serve MODEL --tensor-parallel-size 2 --data-parallel-size 4", "2 × 4 of 4 devices"),
        ("loader = DataLoader(dataset, num_workers=8)", "loader is none"),
        ("with torch.autocast('cuda', dtype=torch.bfloat16): ...", "have already"),
        ("nvidia-smi topo -m", "vendor is amd"),
        ("model = torch.compile(model)", "compiled is inductor"),
    )
    for advice, fault in said:
        assert any(fault in text for text in contradictions(fact, "rule", advice)), advice
    assert not list(contradictions(fact, "rule", "vllm serve MODEL --tensor-parallel-size 2"))
