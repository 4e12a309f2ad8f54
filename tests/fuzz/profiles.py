"""The valid files that are damaged: small, and shaped like recorded ones, in all formats."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
import zipfile
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from pathlib import Path
from random import Random
from typing import Any, Literal

from msgspec import Struct

from tb_perfadvisor.testing import draw
from tb_perfadvisor.testing.writers import write_chrome, write_kineto, write_xplane
from tb_perfadvisor.trace import Trace
from tests.support.device_xspaces import gpu_xspace, tpu_xspace
from tests.support.drawings import drawings
from tests.support.hlo_programs import program
from tests.support.tool_results import (
    chart_table,
    document,
    generic_step,
    input_pipeline,
    kernel_stats,
    overview,
    stage,
    tensorflow_stats,
    tpu_step,
)

Form = Literal["kineto", "xplane", "chrome", "tool", "tool-json"]

SESSION = "plugins/profile/2026_01_01_00_00_00"
_DEMO_LOGS = Path(__file__).resolve().parents[2] / "demo_logs"
# Larger ones take longer than all others together.
_MAX_RECORDED_BYTES = 60_000


class ProfileFile(Struct, frozen=True):
    """One file of a profile."""

    path: str
    """Relative to the log directory; says which format it is."""
    form: Form
    data: bytes


Profile = tuple[ProfileFile, ...]


def choose(random: Random) -> Profile:
    """One of the valid profiles. All formats are equally likely."""
    kinds: Sequence[Callable[[Random], Profile]] = (
        _kineto,
        _kineto,
        _kineto_ranks,
        _recorded,
        _xplane,
        _xplane,
        _chrome,
        _tools,
    )
    return random.choice(kinds)(random)


def pack(data: bytes, random: Random) -> bytes:
    """The file as it is, or compressed and archived in some valid way."""
    choice = random.randrange(12)
    if choice < 7:
        return data
    if choice < 9:
        return gzip.compress(data, 1)
    if choice == 9:  # two members, as `cat` makes
        half = random.randrange(len(data) + 1)
        return gzip.compress(data[:half], 1) + gzip.compress(data[half:], 1)
    if choice == 10:
        return gzip.compress(gzip.compress(data, 1), 1)
    return _archived(data, is_zip=random.random() < 0.5)


def _archived(data: bytes, *, is_zip: bool) -> bytes:
    out = io.BytesIO()
    if is_zip:
        with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("trace.json", data)
    else:
        with tarfile.open(fileobj=out, mode="w:gz") as archive:
            member = tarfile.TarInfo("trace.json")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return out.getvalue()


# --- drawn profiles ---------------------------------------------------------------------------


@cache
def _texts() -> tuple[tuple[str, bool], ...]:
    """The drawings of all rules' tests, and whether each is of a TPU."""
    return tuple((text, " tpu " in text) for text in drawings().values())


@lru_cache(maxsize=2_000)
def _drawn(number: int, framework: str, rank: int, world: int) -> Trace:
    text, is_tpu = _texts()[number]
    device = "TPU v5 lite" if is_tpu else "NVIDIA H100 80GB HBM3"
    ranks: dict[str, Any] = {"rank": rank, "world_size": world} if world else {}
    return draw(text, device=device, framework=framework, **ranks)  # type: ignore[arg-type]


@lru_cache(maxsize=4_000)
def _written(form: Form, number: int, framework: str, rank: int = 0, world: int = 0) -> bytes:
    trace = _drawn(number, framework, rank, world)
    write = {"kineto": write_kineto, "xplane": write_xplane, "chrome": write_chrome}[form]
    return write(trace)


def _any_drawing(random: Random) -> int:
    return random.randrange(len(_texts()))


def _kineto(random: Random) -> Profile:
    data = _written("kineto", _any_drawing(random), "pytorch")
    return (ProfileFile("run/worker0.pt.trace.json", "kineto", data),)


def _kineto_ranks(random: Random) -> Profile:
    number, world = _any_drawing(random), random.choice((2, 3, 8))
    return tuple(
        ProfileFile(
            f"run/rank{rank}.pt.trace.json",
            "kineto",
            _written("kineto", number, "pytorch", rank, world),
        )
        for rank in range(min(world, 3))
    )


def _xplane(random: Random) -> Profile:
    if random.random() < 0.2:
        data = random.choice(_xspaces())
    else:
        framework = random.choice(("tensorflow", "jax", "pytorch"))
        data = _written("xplane", _any_drawing(random), framework)
    files = [ProfileFile(f"run/{SESSION}/host.xplane.pb", "xplane", data)]
    if random.random() < 0.2:
        files += _tool_files(random)[:1]
    return tuple(files)


@cache
def _xspaces() -> tuple[bytes, ...]:
    """XSpaces with details that drawings lack: programs, counters, tf.data."""
    gpu, tpu = gpu_xspace(), tpu_xspace()
    for space in (gpu, tpu):
        programs = space.plane("/host:metadata")
        line = space.line(programs, "programs")
        space.event(
            programs, line, "jit_step(7)", 0, 1, shared={"Hlo Proto": program()}, program_id=7
        )
    return gpu.bytes(), tpu.bytes()


def _chrome(random: Random) -> Profile:
    framework = random.choice(("tensorflow", "jax"))
    data = _written("chrome", _any_drawing(random), framework)
    return (ProfileFile(f"run/{SESSION}/host.trace.json", "chrome", data),)


# --- recorded profiles ------------------------------------------------------------------------


@cache
def _recordings() -> tuple[ProfileFile, ...]:
    found = []
    for path in sorted(_DEMO_LOGS.glob("**/*.gz")):
        data = gzip.decompress(path.read_bytes())
        shortened = _shortened(data)
        found.append(ProfileFile(f"run/{path.name.removesuffix('.gz')}", "kineto", shortened))
    return tuple(found)


def _shortened(data: bytes) -> bytes:
    """A recording without its later events: large files would take all the time."""
    recorded = json.loads(data)
    events = recorded["traceEvents"]
    keep = len(events) * _MAX_RECORDED_BYTES // max(len(data), _MAX_RECORDED_BYTES)
    recorded["traceEvents"] = events[: max(keep, 1)]
    return json.dumps(recorded).encode()


def _recorded(random: Random) -> Profile:
    return (random.choice(_recordings()),)


# --- results of tools -------------------------------------------------------------------------


@cache
def _tool_results() -> tuple[ProfileFile, ...]:
    steps = [
        generic_step(number, step=10.0, wait_input=4.0, compute=5.0, to_device=1.0, compile=0.2)
        for number in range(5)
    ]
    stages = [stage("Iterator::Batch", 5, 20.0, 10.0, "Preprocessing")]
    pipeline = input_pipeline(*steps, stages=stages, mean=10.0)
    on_tpu = input_pipeline(
        *(tpu_step(number, infeed=1.0, compute=8.0, idle=0.5) for number in range(5)),
        hardware="TPU",
        knows_collectives=True,
    )
    stats = tensorflow_stats(
        ("Device", "MatMul", "a", 6, 90.0, 60.0), ("Host", "Cast", "b", 2, 9, 9)
    )
    files = {
        "h.input_pipeline.pb": pipeline,
        "t.input_pipeline.pb": on_tpu,
        "h.overview_page.pb": overview(
            pipeline, percent={1: 5.0, 2: 40.0, 10: 100.0}, device="GPU", cores=2
        ),
        "h.tensorflow_stats.pb": stats,
        "h.kernel_stats.pb": kernel_stats(("volta_sgemm", 700, 3)),
        "h.input_pipeline.json": document(
            [chart_table({"stepnum": ["1", "2"], "infeedPercentAverage": [40.0, 50.0]})]
        ),
        "h.pod_viewer.json": document(
            {
                "podStatsSequence": {
                    "podStatsMap": [
                        {
                            "stepNum": number,
                            "podStatsPerCore": {
                                "0": {"totalDurationUs": 900.0, "stepBreakdownUs": {"1": 300.0}}
                            },
                        }
                        for number in range(3)
                    ]
                }
            }
        ),
        "h.memory_profile.json": document(
            {"memoryProfilePerAllocator": {"GPU_0_bfc": {"profileSummary": {"peakStats": {}}}}}
        ),
        "h.memory_viewer.json": document(
            {"bufferAssignment": {"bufferAllocations": [{"size": "3"}]}}
        ),
        "h.op_profile.json": document({"byCategory": {"children": [{"metrics": {"time": 0.5}}]}}),
    }
    return tuple(
        ProfileFile(
            f"run/{SESSION}/{name}", "tool-json" if name.endswith(".json") else "tool", data
        )
        for name, data in files.items()
    )


def _tool_files(random: Random) -> list[ProfileFile]:
    files = list(_tool_results())
    random.shuffle(files)
    return files[: random.randint(1, len(files))]


def _tools(random: Random) -> Profile:
    return tuple(_tool_files(random))
