"""Asks XLA's TPU compiler what programs cost, on machines that need not have a TPU.

The compiler runs in a process of its own with a time limit (`worker.py`). Answers are cached.
What it says are its estimates, never measurements.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from tb_perfadvisor.engine.result_cache import ResultCache
from tb_perfadvisor.errors import PerfAdvisorError, UsageError
from tb_perfadvisor.extras import install_command
from tb_perfadvisor.ingest.files.containment import private_directory
from tb_perfadvisor.tpu_compiler.generations import GENERATIONS, Generation
from tb_perfadvisor.tpu_compiler.kernels import Kernel, dumped_cycles, kernels_of
from tb_perfadvisor.tpu_compiler.optimized_hlo import parse_module

_WORKER = Path(__file__).with_name("worker.py")
_CACHE_BYTES = 256 << 20
_ANSWER = "answer.z"
# Part of each key: change it with whatever changes an answer.
_CACHE_FORMAT = 1
_START_S = 120
"""Importing JAX and loading the compiler takes seconds, on a busy machine up to a minute."""


class Operation(Struct, frozen=True):
    """An operation to compile by itself."""

    kind: str
    """One of `OPERATIONS` in `worker.py`."""
    sizes: tuple[int, ...]
    dtype: str = "bfloat16"

    def __str__(self) -> str:
        """As the command takes it: `product:8192x4096x130`."""
        return f"{self.kind}:{'x'.join(map(str, self.sizes))}"


class Source(Struct, frozen=True):
    """A program to compile, as the text of a Python module.

    The module defines `program(devices)`, which returns a function (jitted or not) and its
    arguments: arrays, or `jax.ShapeDtypeStruct`s. `devices` are those of the generation's smallest
    slice; arguments without a sharding are placed on the first one.
    """

    text: str


class CompiledProgram(Struct, frozen=True):
    """A program as the compiler schedules it for one generation."""

    generation: str
    jax: str
    libtpu: str
    kernels: tuple[Kernel, ...]
    hlo_text: str
    """The optimized module, with tiled layouts."""
    hlo_proto: bytes
    """The same as a serialized `HloModuleProto`, which profiles embed."""
    memory_bytes: dict[str, int]
    """Sizes by use: argument, output, temp, alias."""

    @property
    def cycles(self) -> float:
        """Estimated cycles of one execution.

        Kernels run one after the other. Asynchronous copies and collectives run beside them, as far
        as the bandwidth of main memory allows.
        """
        synchronous = [kernel for kernel in self.kernels if not kernel.is_asynchronous]
        busy = sum(kernel.cycles * kernel.runs for kernel in synchronous)
        moved = sum(kernel.hbm_bytes * kernel.runs for kernel in self.kernels)
        return max(busy, moved / GENERATIONS[self.generation].hbm_bytes_per_cycle)


class Refused(Struct, frozen=True):
    """A program that could not be compiled."""

    reason: str


def tpu_compiler_versions() -> tuple[str, str] | None:
    """Versions of jax and libtpu in this environment; None if one is missing."""
    try:
        return version("jax"), version("libtpu")
    except PackageNotFoundError:
        return None


def compile_for_tpu(
    generation: Generation,
    programs: Sequence[Operation | Source],
    *,
    time_limit_s: float = 120,
    patience_s: float = inf,
    python: Path | None = None,
    topology: str = "",
) -> list[CompiledProgram | Refused]:
    """Compile programs for a generation of TPUs.

    There is one answer for each program. All are compiled in one process, because it takes longer
    to start than to compile a small program. `time_limit_s` is for all of them, without the start
    of the process; what is not compiled by then is refused. If one takes longer than `patience_s`,
    it is refused, and the others are compiled in another process: for some shapes the compiler
    takes minutes.

    `python` is the interpreter of an environment with jax and libtpu, by default this one; only its
    answers are cached. `topology` is the slice to compile for, if not the generation's smallest
    one.
    """
    versions = tpu_compiler_versions() if python is None else None
    if python is None and versions is None:
        raise UsageError(
            "asking the TPU compiler needs jax and libtpu, which are not installed.",
            hint=f"Run `{install_command('tpu')}` (Linux on x86-64). No TPU is needed.",
        )
    topology = topology or generation.topology
    cache = _open_cache() if versions is not None else None
    keys = [_key(program, topology, versions) for program in programs]
    answers = [_cached(cache, key) for key in keys]
    missing = [number for number, answer in enumerate(answers) if answer is None]
    if missing:
        asked = [programs[number] for number in missing]
        limits = _Limits(time.monotonic() + time_limit_s, time_limit_s, patience_s)
        compiled = _compile(generation, topology, asked, limits, python or Path(sys.executable))
        for number, answer in zip(missing, compiled, strict=True):
            answers[number] = answer
            if isinstance(answer, CompiledProgram):
                _store(cache, keys[number], answer)
    return [answer for answer in answers if answer is not None]


class _Limits(NamedTuple):
    deadline: float
    """On the monotonic clock; it moves by the time that the processes take to start."""
    time_limit_s: float
    patience_s: float


def _compile(
    generation: Generation,
    topology: str,
    programs: Sequence[Operation | Source],
    limits: _Limits,
    python: Path,
) -> list[CompiledProgram | Refused]:
    answers: list[CompiledProgram | Refused] = []
    while len(answers) < len(programs):
        started = time.monotonic()
        rest = programs[len(answers) :]
        found, start_s = _compile_in_a_process(generation, topology, rest, limits, python)
        answers += found
        limits = limits._replace(deadline=limits.deadline + start_s)
        if time.monotonic() >= limits.deadline:
            late = Refused(f"not compiled within {limits.time_limit_s:g} s")
            return answers + [late] * (len(programs) - len(answers))
        if len(found) < len(rest):  # the next one took too long, or ended the process
            waited = time.monotonic() - started >= limits.patience_s
            reason = f"took longer than {limits.patience_s:g} s" if waited else "ended the compiler"
            answers.append(Refused(reason))
    return answers


def _compile_in_a_process(
    generation: Generation,
    topology: str,
    programs: Sequence[Operation | Source],
    limits: _Limits,
    python: Path,
) -> tuple[list[CompiledProgram | Refused], float]:
    """Answers for the first programs, as many as there is time for, and the time to start."""
    with tempfile.TemporaryDirectory(prefix="perfadvisor-tpu-") as folder:
        request = {
            "topology": topology,
            "dump": folder,
            "programs": [_request(program) for program in programs],
        }
        lines, start_s = _run_worker(python, request, len(programs) + 1, limits)
        if not lines or "refused" in lines[0]:
            reason = lines[0]["refused"] if lines else "it did not start in time"
            raise PerfAdvisorError(f"the TPU compiler cannot be used: {reason}.")
        answers: list[CompiledProgram | Refused] = []
        for number, line in enumerate(lines[1:]):
            if "error" in line:
                answers.append(Refused(line["error"]))
                continue
            cycles = dumped_cycles(Path(folder) / str(number))
            kernels = kernels_of(parse_module(line["hlo_text"]), cycles, generation)
            answers.append(
                CompiledProgram(
                    generation=generation.name,
                    jax=lines[0]["jax"],
                    libtpu=lines[0]["libtpu"],
                    kernels=kernels,
                    hlo_text=line["hlo_text"],
                    hlo_proto=base64.b64decode(line["hlo_proto"]),
                    memory_bytes=line["memory"],
                )
            )
        return answers, start_s


def _request(program: Operation | Source) -> dict[str, Any]:
    if isinstance(program, Source):
        return {"source": program.text}
    return {"operation": program.kind, "sizes": program.sizes, "dtype": program.dtype}


def _run_worker(
    python: Path, request: dict[str, Any], count: int, limits: _Limits
) -> tuple[list[dict[str, Any]], float]:
    """The lines that the worker answers in time, at most `count`, and its time to start."""
    started = time.monotonic()
    flags = (
        f"--xla_jf_dump_to={request['dump']} --xla_jf_dump_llo_text=true"
        " --xla_jf_dump_llo_pass_label_regex=.*(final_bundles|deduplication).*"
    )
    environment = os.environ | {
        "JAX_PLATFORMS": "cpu",
        "TPU_SKIP_MDS_QUERY": "1",
        # A training program on this machine may hold the library's lock.
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
        "LIBTPU_INIT_ARGS": flags,
    }
    process = subprocess.Popen(
        [str(python), str(_WORKER)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        text=True, encoding="utf-8", env=environment,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    reader = threading.Thread(target=_read_lines, args=(process.stdout, lines), daemon=True)
    reader.start()
    found: list[dict[str, Any]] = []
    deadline, start_s = started + _START_S, 0.0
    try:
        with suppress(BrokenPipeError):
            process.stdin.write(json.dumps(request))
            process.stdin.close()
        while len(found) < count:
            line = lines.get(timeout=max(deadline - time.monotonic(), 0.001))
            if line is None:
                break
            found.append(json.loads(line))
            now = time.monotonic()
            start_s = start_s or now - started
            deadline = min(limits.deadline + start_s, now + limits.patience_s)
    except queue.Empty:
        pass
    finally:
        process.kill()
        process.wait()
        reader.join()
        process.stdout.close()
    return found, start_s


def _read_lines(stream: Any, lines: queue.SimpleQueue[str | None]) -> None:
    for line in stream:
        lines.put(line)
    lines.put(None)


def _open_cache() -> ResultCache | None:
    """The cache of answers; None if its directory cannot be written."""
    try:
        return ResultCache(private_directory() / "tpu-compiler", max_bytes=_CACHE_BYTES)
    except OSError:
        return None


def _key(program: Operation | Source, topology: str, versions: tuple[str, str] | None) -> str:
    text = json.dumps([_request(program), topology, versions, _CACHE_FORMAT])
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _cached(cache: ResultCache | None, key: str) -> CompiledProgram | Refused | None:
    content = cache.read(key, _ANSWER) if cache is not None else None
    if content is None:
        return None
    try:
        return msgspec.json.decode(zlib.decompress(content), type=CompiledProgram)
    except (zlib.error, msgspec.DecodeError):
        return None


def _store(cache: ResultCache | None, key: str, answer: CompiledProgram) -> None:
    if cache is not None:
        cache.store(key, _ANSWER, zlib.compress(msgspec.json.encode(answer)))
