"""The measurements and their targets."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from inputs import Inputs, label, megabytes_of
from processes import (
    ROOT,
    FailedError,
    Program,
    Result,
    Sample,
    cpu_s,
    environment,
    in_turns,
    pairwise,
    wall_s,
    work_s,
)

_PROGRAMS = ROOT / "benchmarks" / "programs"

# From this size on, start-up and imports are a small part of an analysis.
_LARGE_MB = 100

OURS = "tb_perfadvisor"
FLOOR = "floor"
STARTUP = "start-up (perfadvisor rules)"
HTA = "HTA 0.6.1 (traceinsight)"
PLUGIN = "torch-tb-profiler 0.4.3"
XPROF = "xprof 2.24.2"

_MB = 1e6


@dataclass(frozen=True, slots=True)
class Verdict:
    """A target and the measured value."""

    what: str
    target: str
    measured: str
    passed: bool | None
    """None where nothing could be measured."""


@dataclass(frozen=True, slots=True)
class Timing:
    """All runs of some programs on one input."""

    input: str
    megabytes: float | None
    results: Mapping[str, Result]


@dataclass(slots=True)
class Bench:
    """What a measurement needs, and its timings."""

    inputs: Inputs
    scratch: Path
    runs: int
    peers: Callable[[], Path]
    """The interpreter of the peers' environment, made when first asked for."""
    timings: list[Timing] = field(default_factory=list)

    def time(
        self, name: str, megabytes: float | None, *programs: Program, runs: int | None = None
    ) -> Mapping[str, Result]:
        """Run programs alternately and store their timings.

        Args:
            name: The name of the input in tables.
            megabytes: The input's size.
            *programs: What to run.
            runs: The number of runs, if it differs from the default.

        Raises:
            FailedError: If our program fails, because then there is nothing to compare.
        """
        size = "" if megabytes is None else f", {megabytes:.0f} MB"
        print(f"{name}{size}", file=sys.stderr)
        results = in_turns(programs, runs or self.runs, self.scratch)
        self.timings.append(Timing(name, megabytes, results))
        if OURS in results and results[OURS].error:
            raise FailedError(f"{OURS} on {name}: {results[OURS].error}")
        return results


def analyze(path: Path, *options: str, name: str = OURS) -> Program:
    """Our whole analysis: start-up, reading, every signal, every rule, the report."""
    command = _analyze(path, *options)
    return Program(name, lambda _: [command])


def kineto(bench: Bench) -> Iterator[Verdict]:
    """Kineto traces against HTA, the PyTorch plugin and the floor."""
    faster: dict[str, list[_Point]] = {HTA: [], PLUGIN: []}
    over_floor: list[_Point] = []
    for path in bench.inputs.kineto():
        megabytes = megabytes_of(path)
        size = f"{megabytes:.0f} MB"
        results = bench.time(
            label(path),
            megabytes,
            analyze(path),
            _script(sys.executable, FLOOR, "floor.py", path),
            _script(bench.peers(), HTA, "hta_breakdowns.py", path),
            _script(bench.peers(), PLUGIN, "torch_tb_profiler_run.py", path),
        )
        for peer, points in faster.items():
            strict = pairwise(
                results, peer, OURS, lambda peer_run, our_run: work_s(peer_run) / our_run.wall_s
            )
            points.append(_Point(size, pairwise(results, peer, OURS, _times_faster), strict))
        if megabytes >= _LARGE_MB:
            over_floor.append(_Point(size, pairwise(results, OURS, FLOOR, _times_faster)))
    yield _at_least(f"Kineto from 35 MB on, against {HTA}", 4, faster[HTA])
    yield _at_least(f"Kineto from 35 MB on, against {PLUGIN}", 4, faster[PLUGIN])
    yield _at_most("Kineto from 100 MB on, against the floor", 2.5, over_floor)


def xplane(bench: Bench) -> Iterator[Verdict]:
    """XPlanes against three of XProf's tools."""
    memory = []
    for kind, least_times in (("gpu", 2), ("tpu", 5)):
        path = bench.inputs.xplane(kind, 64)
        megabytes = megabytes_of(path)
        results = bench.time(label(path), megabytes, analyze(path), _xprof(bench.peers(), path))
        strict = pairwise(
            results, XPROF, OURS, lambda peer_run, our_run: work_s(peer_run) / our_run.wall_s
        )
        shape = f"{kind.upper()}, {megabytes:.0f} MB"
        point = _Point(shape, pairwise(results, XPROF, OURS, _times_faster), strict)
        yield _at_least(
            f"XPlane ({kind.upper()}) against three tools of {XPROF}", least_times, [point]
        )
        theirs_bytes = results[XPROF].peak_bytes
        share = results[OURS].peak_bytes / theirs_bytes if theirs_bytes else None
        memory.append(_Point(shape, share))
    yield _at_most("XPlane: peak memory against theirs", 1 / 3, memory)


def scale(bench: Bench) -> Iterator[Verdict]:
    """A gigabyte of Kineto JSON: whether it finishes, in what memory, and in linear time."""
    small, large = bench.inputs.large(100), bench.inputs.large(1000)
    sizes_mb = [megabytes_of(path) for path in (small, large)]
    names = [f"{OURS}, {size_mb:.0f} MB" for size_mb in sizes_mb]
    programs = [
        analyze(path, "--workers", "1", name=name)
        for path, name in zip((small, large), names, strict=True)
    ]
    results = bench.time("one trace, repeated", None, *programs, _startup())
    what = "1 GB of Kineto JSON in one process"
    errors = [results[name].error for name in names if results[name].error]
    if errors:
        yield Verdict(what, "finishes", errors[0], passed=False)
        return
    result = results[names[1]]
    yield Verdict(what, "finishes", f"{result.median(wall_s):.1f} s", passed=True)
    peak_mb = result.peak_bytes / _MB
    yield Verdict("… its peak memory", "≤ 900 MB", f"{peak_mb:.0f} MB", peak_mb <= 900)
    startup_s = results[STARTUP].median(cpu_s)

    def per_megabyte_s(sample: Sample, size_mb: float) -> float:
        return (sample.cpu_s - startup_s) / size_mb

    growth = pairwise(
        results,
        names[1],
        names[0],
        lambda large, small: (
            per_megabyte_s(large, sizes_mb[1]) / per_megabyte_s(small, sizes_mb[0])
        ),
    )
    assert growth is not None
    yield Verdict(
        # Processor time, because the longer run waits more on a shared machine.
        "… its time per MB beyond start-up, against 100 MB",
        "≤ 1.1×",
        f"{growth:.2f}×",
        growth <= 1.1,
    )


def large(bench: Bench) -> Iterator[Verdict]:
    """A gigabyte of Kineto JSON against HTA and the PyTorch plugin; once, as they take minutes."""
    path = bench.inputs.large(1000)
    megabytes = megabytes_of(path)
    results = bench.time(
        "one trace, repeated",
        megabytes,
        analyze(path),
        _script(bench.peers(), HTA, "hta_breakdowns.py", path),
        _script(bench.peers(), PLUGIN, "torch_tb_profiler_run.py", path),
        runs=1,
    )
    for peer in (HTA, PLUGIN):
        what = f"1 GB of Kineto JSON against {peer}"
        if results[peer].error:
            yield Verdict(what, "≥ 8× faster", f"it fails: {results[peer].error}", passed=True)
        else:
            point = _Point(f"{megabytes:.0f} MB", pairwise(results, peer, OURS, _times_faster))
            yield _at_least(what, 8, [point])


def ranks(bench: Bench) -> Iterator[Verdict]:
    """Sixteen ranks with two workers, against two independent processes."""
    folder = bench.inputs.ranks(16, 34)
    files = sorted(folder.iterdir())
    megabytes = sum(map(megabytes_of, files))
    workers, independent = "two workers", "two independent processes"
    results = bench.time(
        "16 ranks",
        megabytes,
        analyze(folder, "--workers", "2", name=workers),
        Program(independent, lambda scratch: _halves(files, scratch)),
        analyze(folder, "--workers", "1", name="one process"),
    )
    share = pairwise(results, independent, workers, lambda apart, us: apart.wall_s / us.wall_s)
    what = "16 ranks with --workers 2: throughput against two independent processes"
    if share is None:
        error = results[workers].error or results[independent].error
        yield Verdict(what, "≥ 85 %", error, passed=None)
        return
    yield Verdict(what, "≥ 85 %", f"{share:.0%}", share >= 0.85)


def again(bench: Bench) -> Iterator[Verdict]:
    """The second analysis of the same files."""
    points = []
    for path in bench.inputs.kineto():
        megabytes = megabytes_of(path)
        results = bench.time(label(path), megabytes, _second(path), _startup())
        beyond_s = pairwise(results, "second time", STARTUP, lambda us, no: us.wall_s - no.wall_s)
        points.append(_Point(f"{megabytes:.0f} MB", beyond_s))
    yield _at_most("The second analysis of the same files, beyond start-up", 0.5, points, " s")


def startup(bench: Bench) -> Iterator[Verdict]:
    """Import and start-up times of TensorBoard and the command line."""
    loader = "plugin's loader"
    help_ = _command("--help", "--help")
    results = bench.time(
        "start-up", None, _script(sys.executable, loader, "plugin_import.py"), help_
    )
    if not results[loader].error:
        added_ms = 1000 * results[loader].median(work_s)
        what = "Import of the plugin's loader, beyond TensorBoard"
        yield Verdict(what, "≤ 20 ms", f"{added_ms:.0f} ms", added_ms <= 20)
    if not results[help_.name].error:
        help_s = results[help_.name].median(wall_s)
        yield Verdict("perfadvisor --help", "≤ 0.4 s", f"{help_s:.2f} s", help_s <= 0.4)


MEASURES: dict[str, Callable[[Bench], Iterator[Verdict]]] = {
    measure.__name__: measure for measure in (kineto, xplane, scale, large, ranks, again, startup)
}


@dataclass(frozen=True, slots=True)
class _Point:
    """A figure for one input; None if a program failed."""

    input: str
    value: float | None
    strict: float | None = None
    """The same without the peer's start-up and imports; ours are in."""


def _at_least(what: str, limit: float, points: Sequence[_Point]) -> Verdict:
    known = [point.value for point in points if point.value is not None]
    passed = min(known) >= limit if known else None
    return Verdict(what, f"≥ {limit:g}× faster", _listed(points, "×"), passed)


def _at_most(what: str, limit: float, points: Sequence[_Point], unit: str = "×") -> Verdict:
    known = [point.value for point in points if point.value is not None]
    passed = max(known) <= limit if known else None
    return Verdict(what, f"≤ {limit:.3g}{unit}", _listed(points, unit), passed)


def _listed(points: Sequence[_Point], unit: str) -> str:
    known = [point for point in points if point.value is not None]
    if not known:
        return "not measured"
    text = ", ".join(f"{figure.value:.2g}{unit} ({figure.input})" for figure in known)
    strict = [f"{figure.strict:.2g}{unit}" for figure in known if figure.strict is not None]
    return f"{text}; without its imports {', '.join(strict)}" if strict else text


def _times_faster(slower: Sample, faster: Sample) -> float:
    return slower.wall_s / faster.wall_s


def _analyze(path: Path, *options: str) -> list[str]:
    command = [sys.executable, "-m", "tb_perfadvisor", "analyze", str(path)]
    return [*command, "--format", "json", *options]


def _script(python: Path | str, name: str, script: str, *arguments: Path) -> Program:
    command = [str(python), str(_PROGRAMS / script), *map(str, arguments)]
    return Program(name, lambda _: [command])


def _xprof(python: Path, path: Path) -> Program:
    def commands(scratch: Path) -> list[list[str]]:
        # It writes next to its input.
        copy = shutil.copy(path, scratch)
        return [[str(python), str(_PROGRAMS / "xprof_tools.py"), str(copy)]]

    return Program(XPROF, commands)


def _command(name: str, *words: str) -> Program:
    return Program(name, lambda _: [[sys.executable, "-m", "tb_perfadvisor", *words]])


def _startup() -> Program:
    """Start-up: interpreter, command line, engine and rules, without input."""
    return _command(STARTUP, "rules")


def _second(path: Path) -> Program:
    def commands(scratch: Path) -> list[list[str]]:
        command = _analyze(path)
        first = subprocess.run(command, capture_output=True, env=environment(scratch))
        if first.returncode:
            raise FailedError(f"the first analysis of {label(path)} ended with an error")
        return [command]

    return Program("second time", commands)


def _halves(files: Sequence[Path], scratch: Path) -> list[list[str]]:
    commands = []
    for number in range(2):
        half = scratch / f"half{number}"
        half.mkdir()
        for file in files[number::2]:
            os.link(file, half / file.name)
        commands.append(_analyze(half, "--workers", "1"))
    return commands
