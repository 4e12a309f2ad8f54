"""Input files of the benchmarks, recorded and generated."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from isal import igzip

from processes import ROOT

_BENCHMARKS = ROOT / "benchmarks"
_CHUNK_BYTES = 1 << 20

# Of the corpus: 35 MB from an A100 with collectives, 56 MB from an H100 with stacks and shapes,
# 81 MB from an A100 with compiled kernels, 115 MB from a CPU.
_RECORDED = (
    "hta/trace_diff_control/worker0.pt.trace.json.gz",
    "tracelens/h100/google_owlv2-large-patch14-ensemble/rank0.pt.trace.json.gz",
    "sam-fast/asdf_False_a73da0d1/rank0.pt.trace.json.gz",
    "local-bench/vit_large_trace_50steps/worker0.1795226707625784415.pt.trace.json.gz",
)
# Repeated if there is no corpus: a synthetic trace, because HTA requires a GPU; and a recorded one
# with events of realistic length, if only our own time and memory are measured.
_DRAWN = "synthetic_gpu_allreduce_8rank/rank0.*.pt.trace.json.gz"
_ON_CPU = "pytorch_ddp_straggler/worker0.*.pt.trace.json.gz"


@dataclass(frozen=True, slots=True)
class Inputs:
    """Finds or generates files, each once."""

    made: Path
    """Where files are made."""
    given: tuple[Path, ...] = ()
    """Kineto traces that the caller named; they replace the recorded ones."""

    def kineto(self) -> list[Path]:
        """Traces of 30 to 115 MB."""
        if self.given:
            return list(self.given)
        found = _recorded()
        if found:
            return [*found, self._repeated(found[0], 100, ".json.gz")]
        return [self._repeated(_demo(_DRAWN), size, ".json.gz") for size in (35, 100)]

    def large(self, megabytes: int) -> Path:
        """A trace of at least some size."""
        return self._repeated(self._seed(), megabytes, ".json")

    def ranks(self, count: int, megabytes: int) -> Path:
        """A run of some number of ranks, each of at least some size."""
        seed = self._seed()
        folder = self.made / f"{_stem(seed)}-{count}x{megabytes}mb"
        if not folder.exists():
            options = (f"--megabytes={megabytes}", f"--ranks={count}")
            _make("big_kineto.py", seed, folder, *options)
        return folder

    def uneven_ranks(self, count: int) -> Path:
        """A run of some number of ranks with different clocks, some of them late."""
        seed = self._seed()
        folder = self.made / f"{_stem(seed)}-{count}-uneven"
        if not folder.exists():
            _make("uneven_ranks.py", seed, folder, f"--ranks={count}")
        return folder

    def _seed(self) -> Path:
        return self.given[0] if self.given else next(iter(_recorded()), _demo(_ON_CPU))

    def _repeated(self, seed: Path, megabytes: int, suffix: str) -> Path:
        target = self.made / f"{_stem(seed)}-{megabytes}mb.pt.trace{suffix}"
        if not target.exists():
            _make("big_kineto.py", seed, target, f"--megabytes={megabytes}")
        return target

    def xplane(self, kind: str, megabytes: int) -> Path:
        """An xplane of at least some size."""
        target = self.made / f"{kind}-{megabytes}mb.xplane.pb"
        if not target.exists():
            _make("big_xplane.py", kind, target, f"--megabytes={megabytes}")
        return target


def megabytes_of(path: Path) -> float:
    """The uncompressed size. Reading also loads the file into the page cache, for all programs."""
    with path.open("rb") as file:
        is_gzipped = file.read(2) == b"\x1f\x8b"
        file.seek(0)
        if not is_gzipped:
            return sum(len(chunk) for chunk in iter(lambda: file.read(_CHUNK_BYTES), b"")) / 1e6
        with igzip.IGzipFile(fileobj=file) as inflated:
            return sum(len(chunk) for chunk in iter(lambda: inflated.read(_CHUNK_BYTES), b"")) / 1e6


def label(path: Path) -> str:
    """A name for a file in tables: distinct, and without paths of this machine."""
    corpus = _corpus()
    if corpus and path.is_relative_to(corpus):
        return path.relative_to(corpus).parent.as_posix()
    return path.name.partition(".")[0]


def _recorded() -> list[Path]:
    corpus = _corpus()
    paths = [corpus / path for path in _RECORDED] if corpus else []
    return [path for path in paths if path.exists()]


def _demo(pattern: str) -> Path:
    (found,) = (ROOT / "demo_logs").glob(pattern)
    return found


def _stem(seed: Path) -> str:
    return label(seed).replace("/", "-")


def _corpus() -> Path | None:
    folder = os.environ.get("PERFADVISOR_CORPUS")
    return Path(folder) if folder else None


def _make(script: str, source: Path | str, target: Path, *options: str) -> None:
    """Run in a separate process, because a process starts with its parent's peak memory."""
    print(f"making {target.name} …", file=sys.stderr)
    command = [sys.executable, str(_BENCHMARKS / script), str(source), str(target), *options]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)
