"""Every kernel of the corpus is what the grammar of its name says.

The table was written from how libraries name their kernels, not from what our own reader says of
them: the first pattern that a name matches gives what it may compute, and the width of its operands
(not of its accumulator: `Ampere_hmma_fp32` and `s16816gemm_bf16` multiply 16-bit numbers). `*`
stands for any kind. Some names have no grammar, such as those of a program's own kernels.
"""

from __future__ import annotations

import csv
import gzip
import json
import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tb_perfadvisor.ingest.kernels.kernel_names import classify_kernels
from tb_perfadvisor.trace.kinds import KernelFamily, Precision

NAMES = """
SELECT DISTINCT value FROM CUPTI_ACTIVITY_KIND_KERNEL JOIN StringIds ON id = demangledName
"""
KINDS = ("kernel", "mtia_ccp_events")
OF_KINETO = (
    *("amd", "astra-sim", "codingplatelets", "harryjmoss", "hta", "kineto", "kineto-old"),
    *("modded-nanogpt", "ncompass-tech", "nsys-public", "param", "pytorch-labs"),
    *("quentin-tutorial", "sam-fast", "tracelens", "tugot17", "willding123"),
)


@pytest.fixture(scope="module")
def names(corpus: Path) -> list[str]:
    """The distinct names of kernels, from the files themselves."""
    found: set[str] = set()
    for path in sorted(corpus.rglob("*")):
        parts = path.relative_to(corpus).parts
        if path.suffix == ".sqlite":
            with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as database:
                found.update(name for (name,) in database.execute(NAMES))
        elif parts[0] in OF_KINETO and path.name.endswith((".json", ".json.gz")):
            found.update(_kernels(path))
    return sorted(found)


def _kernels(path: Path) -> Iterator[str]:
    data = path.read_bytes()
    document: Any = json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)
    for event in document.get("traceEvents", ()) if isinstance(document, dict) else document:
        if str(event.get("cat")).lower() in KINDS:
            yield event["name"]


def grammar() -> list[tuple[str, tuple[str, ...], str]]:
    with Path(__file__).with_name("kernel_grammar.tsv").open(newline="") as file:
        rows = csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        return [(row["pattern"], tuple(row["kind"].split("|")), row["operands"]) for row in rows]


def test_every_kernel_is_what_its_name_says(names: list[str]) -> None:
    table, classes = grammar(), classify_kernels(names)
    assert len(names) > 1_500
    used: set[str] = set()
    faults, without = [], 0
    for name, family, precision in zip(
        names, classes.family.tolist(), classes.precision.tolist(), strict=True
    ):
        row = next((row for row in table if re.search(row[0], name)), None)
        if row is None:
            without += 1
            continue
        pattern, kinds, operands = row
        used.add(pattern)
        kind, width = KernelFamily(family).name, Precision(precision).name
        if (kinds != ("*",) and kind not in kinds) or (operands and width != f"BITS_{operands}"):
            faults.append(f"{kind} {width}, not {kinds} {operands}: {name[:200]}")
    assert faults == []
    assert without < 0.06 * len(names)
    assert [pattern for pattern, *_ in table if pattern not in used] == []
