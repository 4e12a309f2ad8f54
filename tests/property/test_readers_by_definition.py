"""Fields of every format, each present or absent, at the limits of what is possible."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from random import Random
from statistics import median
from typing import Any, TypeVar

import msgspec
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tb_perfadvisor.ingest.chrome.columns import (
    FLOATS,
    INTEGERS,
    KIND_INTEGERS,
    KIND_TEXTS,
    TEXTS,
    ChromeEvent,
    ExportCollector,
)
from tb_perfadvisor.ingest.tf_tools.contents import (
    Contents,
    StepPart,
    StepSums,
    device_count,
    make_step,
    share,
    whole_ns,
)
from tb_perfadvisor.ingest.tf_tools.reader import add_steps
from tb_perfadvisor.ingest.xspace.interpret.detail_texts import (
    CopyDetails,
    LaunchDetails,
    parse_copy,
    parse_launch,
)
from tb_perfadvisor.trace import Assembler, CopyDirection, Device, EventKind, Source
from tests.support import chrome_files, kineto_files
from tests.support.night import examples
from tests.support.xspaces import Drawing

randoms = st.integers(0, 2**32).map(Random)
T = TypeVar("T")
ABSENT = object()


def drawn(random: Random, values: Sequence[tuple[Any, T]], absent: T) -> tuple[Any, T]:
    """A written value and how it reads; often none."""
    return (ABSENT, absent) if random.random() < 0.3 else random.choice(values)


def present(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not ABSENT}


# A written number and how it reads; None is impossible, -1 unknown.
GRIDS = [("1,1,1", 1), ("64,2,1", 128), ("0,1,1", None), ("2147483647,1,1", 2**31 - 1)]
GRIDS += [("2,1073741824,1", None), ("x", None), ("4,-1,1", None)]
BLOCKS = [("1,1,1", 1), ("1024,1,1", 1024), ("32,32,1", 1024), ("1025,1,1", None), ("0,1,1", None)]
REGISTERS = [
    ("0", -1),
    ("1", 1),
    ("255", 255),
    ("1024", 1024),
    ("1025", None),
    ("2191500840", None),
]
SHARED = [("0", 0), ("1", 1), ("49152", 49152), ("1048576", 2**20), ("1048577", None), ("-5", None)]
OCCUPANCY = [("100", 1.0), ("100.5", None), ("0", None), ("50", 0.5), ("0.5", 0.005), ("x", None)]


@examples(100)
@given(randoms)
def test_details_of_a_launch(random: Random) -> None:
    grid_text, grid = drawn(random, GRIDS, -1)
    block_text, block = drawn(random, BLOCKS, -1)
    registers_text, registers = drawn(random, REGISTERS, -1)
    occupancy_text, occupancy = drawn(random, OCCUPANCY, None)
    fields = present(regs=registers_text, grid=grid_text, block=block_text, occ_pct=occupancy_text)
    shared: int | None = -1
    for name in ("static_shared", "dynamic_shared", "shm", "group_mem"):
        text, size = drawn(random, SHARED, 0)
        if random.random() < 0.4 and text is not ABSENT:
            fields[name] = text
            shared = None if shared is None or size is None else max(shared, 0) + size
    if shared is not None and shared > 2**20:
        shared = None
    found = parse_launch(" ".join(f"{name}:{text}" for name, text in fields.items()))
    if None in (grid, block, registers, shared):
        assert msgspec.structs.astuple(found)[:4] == (-1, -1, -1, -1)
        assert math.isnan(found.occupancy_share)
        return
    expected = LaunchDetails(grid, block, registers, shared, occupancy or math.nan)  # type: ignore[arg-type]
    assert str(found) == str(expected)


SIZES = [("0", -1), ("1", 1), ("4096", 4096), (f"{2**62 - 1}", 2**62 - 1), (f"{2**62}", -1)]
SIZES += [("x", -1)]
HOST, DEVICE = "host", "device"
MEMORIES = [("pageable", HOST), ("Pinned", HOST), ("host", HOST), ("device", DEVICE)]
MEMORIES += [("array", DEVICE), ("Device3", DEVICE), ("unified", "")]
KINDS = [
    ("MemcpyH2D", CopyDirection.HOST_TO_DEVICE), ("MEMCPYDtoH", CopyDirection.DEVICE_TO_HOST),
    ("PeerToPeer", CopyDirection.PEER_TO_PEER), ("DeviceToDevice", CopyDirection.DEVICE_TO_DEVICE),
    ("HostToHost", CopyDirection.HOST_TO_HOST), ("x", CopyDirection.UNKNOWN),
]  # fmt: skip
BY_SIDES = {
    (HOST, DEVICE): CopyDirection.HOST_TO_DEVICE, (DEVICE, HOST): CopyDirection.DEVICE_TO_HOST,
    (DEVICE, DEVICE): CopyDirection.DEVICE_TO_DEVICE, (HOST, HOST): CopyDirection.HOST_TO_HOST,
}  # fmt: skip


@examples(100)
@given(randoms)
def test_details_of_a_copy(random: Random) -> None:
    sizes = {name: drawn(random, SIZES, -1) for name in ("size", "num_bytes", "bytes")}
    source, source_side = drawn(random, MEMORIES, "")
    target, target_side = drawn(random, MEMORIES, "")
    kind, by_kind = drawn(random, KINDS, CopyDirection.UNKNOWN)
    fields = present(kind_src=source, kind_dst=target, kind=kind)
    fields |= present(**{name: text for name, (text, _) in sizes.items()})
    written = [size for text, size in sizes.values() if text is not ABSENT]
    ends = {str(source).lower(), str(target).lower()}
    pageable = -1
    if ABSENT not in (source, target):
        pageable = 1 if "pageable" in ends else 0 if "pinned" in ends else -1
    direction = BY_SIDES.get((source_side, target_side), by_kind)
    found = parse_copy(" ".join(f"{name}:{text}" for name, text in fields.items()))
    assert found == CopyDetails(written[0] if written else -1, direction, pageable)


# --- Kineto -------------------------------------------------------------------------------

COUNTS: list[tuple[Any, int | None]] = [
    (0, 0), (1, 1), (7, 7), ("7", 7), (3.9, 3), (True, None), (-1, None), ("-1", None),
    (2**62 - 1, 2**62 - 1), (2**62, None), ("x", None), (None, None), ([], None),
]  # fmt: skip
FLAGS: list[tuple[Any, bool | None]] = [
    (0, False), (1, True), ("0", False), ("1", True), (True, True), (False, False), (None, None),
]  # fmt: skip
TEXT: list[tuple[Any, str]] = [("vm", "vm"), ("", ""), (7, ""), (None, "")]
VERSIONS: list[tuple[Any, str]] = [(12040, "CUDA 12.4"), ("13010", "CUDA 13.1"), (0, ""), (-1, "")]
HIP: list[tuple[Any, str]] = [(70051831, "HIP 7.0.51831"), (60342134, "HIP 6.3.42134"), (0, "")]
NCCL: list[tuple[Any, str]] = [("2.27.7", "NCCL 2.27.7"), ("", ""), (3, "")]
NONE = None
CLOCKS: list[tuple[Any, int | None]] = [
    (0, NONE),
    (1, 1),
    (2, 2),
    ("12", 12),
    (-1, NONE),
    ("x", NONE),
]


@examples(80)
@given(randoms)
def test_the_header_of_kineto(random: Random) -> None:
    rank_text, rank = drawn(random, COUNTS, None)
    size_text, size = drawn(random, COUNTS, None)
    backend_text, backend = drawn(random, TEXT, "")
    nccl_text, nccl = drawn(random, NCCL, "")
    cuda_text, cuda = drawn(random, VERSIONS, "")
    hip_text, hip = drawn(random, HIP, "")
    host_text, host = drawn(random, TEXT, "")
    clock_text, clock = drawn(random, CLOCKS, None)
    flags = {name: drawn(random, FLAGS, None) for name in ("shapes", "stack", "memory")}
    is_new = random.random() < 0.5
    header = present(
        distributedInfo=present(
            rank=rank_text, world_size=size_text, backend=backend_text, nccl_version=nccl_text
        ),
        cuda_runtime_version=cuda_text,
        hip_runtime_version=hip_text,
        host_name=host_text,
        baseTimeNanoseconds=clock_text,
        record_shapes=flags["shapes"][0],
        with_stack=flags["stack"][0],
        profile_memory=flags["memory"][0],
        trace_id="6A31" if is_new else ABSENT,
    )
    data = kineto_files.to_bytes([kineto_files.event("a", 3, 1)], **header)
    found = kineto_files.read(data, path="run/rank5.pt.trace.json").source
    assert (found.rank, found.world_size) == (rank if rank is not None else 5, size or None)
    assert (found.host, found.backend) == (host, backend)
    assert found.version == ", ".join(filter(None, (cuda, hip, nccl)))
    # The event is three microseconds after the clock's origin.
    assert found.origin_unix_ns == (None if clock is None else clock + 3_000)
    default = False if is_new else None
    options = (found.has_shapes, found.has_stacks, found.has_memory)
    assert options == tuple(flag or default for _, flag in flags.values())


def test_times_since_1970_are_wall_clock_times() -> None:
    # Seconds since 1970: the limit is in May 2014.
    for start_us, is_wall_clock in ((1.4e15, False), (1.4e15 + 1, True), (5.0, False)):
        found = kineto_files.read(kineto_files.to_bytes([kineto_files.event("a", start_us, 1)]))
        expected = int(start_us) * 1000 if is_wall_clock else None
        assert found.source.origin_unix_ns == expected


PARTS: list[tuple[Any, int | None]] = [
    (0, None), (1, 1), (108, 108), ("80", 80), (-1, None), ("x", None)
]  # fmt: skip


@examples(60)
@given(randoms)
def test_the_devices_of_kineto(random: Random) -> None:
    listed, expected = [], {}
    is_hip = random.random() < 0.3
    for index in random.sample(range(4), random.randrange(3)):
        name_text, name = drawn(random, TEXT, "")
        memory_text, memory = drawn(random, PARTS, None)
        units_text, units = drawn(random, PARTS, None)
        other_text, other = drawn(random, PARTS, None)
        major_text, major = drawn(random, COUNTS, None)
        minor_text, minor = drawn(random, COUNTS, None)
        warp = random.choice((32, 64, ABSENT))
        is_grid = random.random() < 0.3
        listed.append(
            present(
                id=index, name=name_text, totalGlobalMem=memory_text, numSms=units_text,
                multiProcessorCount=other_text, computeMajor=major_text, computeMinor=minor_text,
                warpSize=warp, maxGridHeight=7 if is_grid else ABSENT,
            )
        )  # fmt: skip
        text = units_text if units_text is not ABSENT else other_text
        units = units if units_text is not ABSENT else other
        is_stated = units is not None or text == 0
        is_amd = is_hip or warp == 64
        expected[index] = Device(
            index,
            name,
            "other" if is_grid and not is_stated else "gpu",
            memory,
            units,
            vendor="" if major is None else "amd" if is_amd else "nvidia",
            compute_capability="" if None in (major, minor) else f"{major}.{minor}",
        )
    used = random.sample(range(4), random.randrange(3))
    events = [kineto_files.kernel("k", 1 + at, 1, device=at) for at in used]
    header = {"hip_runtime_version": 70051831} if is_hip else {}
    events.append(kineto_files.event("a", 1, 1))
    found = kineto_files.read(
        kineto_files.to_bytes(events, deviceProperties=listed, **header)
    ).devices
    kinds = {str(msgspec.structs.replace(device, index=0)) for device in expected.values()}
    like = next(iter(expected.values())) if len(kinds) == 1 else Device(0, "", "gpu")
    for index in used:
        expected.setdefault(index, msgspec.structs.replace(like, index=index))
    assert found == tuple(expected[index] for index in sorted(expected))


# --- Chrome exports -----------------------------------------------------------------------

NUMBERS: list[tuple[Any, int | None]] = [
    (0, 0), (1, 1), (5, 5), ("6", 6), ("0x10", 16), (2.5, 2), (-1, None), ("x", None),
    (2**62, 2**62), (2**64 - 3, -3),
]  # fmt: skip
REALS: list[tuple[Any, float | None]] = [
    (0.5, 0.5), ("0.25", 0.25), (3, 3.0), ("nan", None), ("x", None), ("inf", None)
]  # fmt: skip
WORDS: list[tuple[Any, str | None]] = [("a", "a"), ("b c", "b c"), (5, None), ("", "")]
TIMES: list[tuple[Any, float | None]] = [
    (0, 0.0), (1.5, 1.5), ("2.5", 2.5), (None, None), ("x", None), (-3.0, -3.0),
    (2.0**61 / 1000, None), (2.0**60 / 1000, 2.0**60 / 1000),
]  # fmt: skip
LENGTHS: list[tuple[Any, tuple[float, bool]]] = [
    (0, (0.0, False)), (1e-6, (0.0, False)), (2e-6, (2e-6, False)), (4.25, (4.25, False)),
    (None, (0.0, True)), (-1, (0.0, True)), ("7", (7.0, False)), ("inf", (0.0, True)),
]  # fmt: skip


@examples(60)
@given(randoms)
def test_the_columns_of_an_export(random: Random) -> None:
    rows: list[dict[str, Any]] = []
    stats: dict[str, list[tuple[int, Any]]] = {}
    facts: dict[tuple[str, str], dict[str, Any]] = {}
    malformed, written = 0, []
    names = sorted(TEXTS | FLOATS | INTEGERS)
    for _ in range(random.randint(0, 12)):
        start_text, start = random.choice(TIMES)
        length_text, (length, is_odd) = random.choice(LENGTHS)
        phase = random.choice("XXXi")
        name = random.choice(("f", "g", "g", 3))
        arguments: dict[str, Any] = {}
        values: dict[str, Any] = {}
        kinds: dict[str, Any] = {}
        for stat in random.sample(names, 4):
            table: Any = TEXTS if stat in TEXTS else FLOATS if stat in FLOATS else INTEGERS
            choices: Any = WORDS if table is TEXTS else REALS if table is FLOATS else NUMBERS
            arguments[stat], values[stat] = random.choice(choices)
        long_name, long_text = drawn(random, WORDS, None)
        old_name, old_text = drawn(random, WORDS, None)
        node, node_text = drawn(random, WORDS, None)
        category = random.choice(("Op", "other", ABSENT))
        arguments |= present(**{"long_name": long_name, "long name": old_name, "name": node})
        if random.random() < 0.5:
            arguments["hlo_category"] = kinds["hlo_category"] = "fusion"
            for fact in KIND_TEXTS[1:]:
                text, kinds[fact] = drawn(random, WORDS, None)
                arguments |= present(**{fact: text})
            for fact in KIND_INTEGERS:
                text, number = drawn(random, NUMBERS, None)
                kinds[fact] = number if number is not None and number >= 0 else None
                arguments |= present(**{fact: text})
        written.append(
            present(
                ph=phase, name=name, ts=start_text, dur=length_text, cat=category, args=arguments,
                pid=random.choice((1, "1", 2)), tid=random.choice((1, "x")),
            )
        )  # fmt: skip
        is_odd &= phase == "X"
        is_kept = start is not None and name != 3
        malformed += int(is_odd or not is_kept)
        if not is_kept:
            continue
        long = next((text for text in (long_text, old_text) if text is not None), None)
        if long is None:
            long = f"{node_text}:{name}" if category == "Op" and node_text is not None else ""
        facts.setdefault((name, long), {key: at for key, at in kinds.items() if at is not None})
        for stat, value in values.items():
            if value is not None:
                stats.setdefault(stat, []).append((len(rows), value))
        thread = (int(written[-1]["pid"]), written[-1]["tid"])
        rows.append(
            {"start": start, "length": 0.0 if phase == "i" else length, "kind": (name, long),
             "thread": thread}
        )  # fmt: skip
    collector = ExportCollector()
    cut = random.randint(0, len(written))
    for part in (written[:cut], written[cut:]):
        collector.add(msgspec.convert(part, list[ChromeEvent], strict=False))
    found = collector.finish()

    def given_stats(columns: Any) -> dict[str, list[tuple[int, Any]]]:
        return {
            name: [
                (row, found.texts[value] if name in TEXTS else value)
                for row, value in zip(column.row.tolist(), column.value.tolist(), strict=True)
            ]
            for name, column in columns.items()
        }

    assert found.malformed == malformed
    assert found.start_us.tolist() == [row["start"] for row in rows]
    assert found.duration_us.tolist() == [row["length"] for row in rows]
    assert [found.threads[at] for at in found.thread.tolist()] == [row["thread"] for row in rows]
    kinds_found = [(found.kinds[at].name, found.kinds[at].long_name) for at in found.kind.tolist()]
    assert kinds_found == [row["kind"] for row in rows]
    assert {(kind.name, kind.long_name): kind.facts for kind in found.kinds} == facts
    assert given_stats(found.stats) == stats
    keep = [random.random() < 0.6 for _ in rows]
    chosen = found.select(np.array(keep, dtype=bool))
    new_row = {row: sum(keep[:row]) for row in range(len(rows)) if keep[row]}
    assert chosen.start_us.tolist() == [
        row["start"] for row, is_kept in zip(rows, keep, strict=True) if is_kept
    ]
    left = {
        name: [(new_row[row], value) for row, value in pairs if keep[row]]
        for name, pairs in stats.items()
    }
    assert given_stats(chosen.stats) == {name: pairs for name, pairs in left.items() if pairs}


@examples(40)
@given(randoms)
def test_times_of_an_export(random: Random) -> None:
    # Picoseconds of up to half an hour survive; half an hour is 1.8e15 picoseconds.
    base_us = random.choice((0, 10, 1_700_000_000_000_000))
    exact = base_us == 0
    picoseconds = [random.choice((0, 999, 1_000, 123_456, 7_000_001)) for _ in range(4)]
    spans = [
        chrome_files.span(f"s{number}", base_us + start / 1e6 if exact else base_us + number, 2.0)
        for number, start in enumerate(picoseconds)
    ]
    found = chrome_files.read([*chrome_files.HOST, *spans])
    starts = {found.name(row): int(at) for row, at in enumerate(found.events.start_ns.tolist())}
    first = min(picoseconds) // 1000
    for number, start in enumerate(picoseconds):
        assert starts[f"s{number}"] == (start // 1000 - first if exact else number * 1000)
    assert set(found.events.duration_ns.tolist()) == {2_000}


# --- TPU runs -----------------------------------------------------------------------------

US = 1_000


@examples(50)
@given(randoms)
def test_the_shift_of_a_device_s_clock(random: Random) -> None:
    drawing = Drawing()
    host, tpu = drawing.plane("/host:CPU"), drawing.plane("/device:TPU:0")
    tasks, python = drawing.line(host, "pjrt-tpu-tasks/7"), drawing.line(host, "python")
    modules, operations = drawing.line(tpu, "XLA Modules"), drawing.line(tpu, "XLA Ops")
    clock = random.choice((0, 5, 9, 10, 11, 40, 300, -9, -10, -11, -40, -300)) * US
    is_completed, has_waits = random.random() < 0.5, random.random() < 0.8
    launched: dict[int, int] = {}
    completed: dict[int, int] = {}
    runs: dict[int, tuple[int, int]] = {}
    returns: list[int] = []
    at = 1_000 * US
    drawing.event(host, python, "first", at - 900 * US, US)
    for number in range(random.randint(1, 5)):
        at += random.choice((0, 100, 400)) * US
        launch = at
        if random.random() < 0.9:
            launched[number] = launch
            drawing.event(
                host, tasks, "DoEnqueueProgram", launch, US, run_id=number, device_ordinal=0
            )
        start = launch + random.choice((0, 1, 20, 60)) * US
        end = start + random.choice((100, 200)) * US
        runs[number] = start + clock, end + clock
        drawing.event(tpu, modules, "jit_f(7)", start + clock, end - start, run_id=number)
        drawing.event(tpu, operations, f"%op.{number} = f32[8] dot()", start + clock, end - start)
        if is_completed and random.random() < 0.7:
            completed[number] = end + random.choice((0, 5, 30)) * US
            drawing.event(
                host, tasks, "CompleteCallbacks", completed[number], US, run_id=number,
                device_ordinal=0,
            )  # fmt: skip
        at = end + random.choice((1, 10, 50)) * US
        drawing.event(host, python, "PjitFunction(f)", launch - US, US // 2)
        if has_waits and random.random() < 0.8:
            returns.append(end + random.choice((0, 5, 30)) * US)
            name = "$api.py:3154 block_until_ready"
            drawing.event(host, python, name, launch, returns[-1] - launch)
            at = max(at, returns[-1] + 2 * US)
    found = drawing.read()
    events = found.events
    first = int(events.start_ns[[found.name(row) == "first" for row in range(len(events))]][0])
    rows = found.rows(EventKind.KERNEL).tolist()
    shifts = {
        int(events.start_ns[row]) - first + 100 * US - runs[number][0]
        for number, row in enumerate(rows)
    }
    assert shifts == {expected_shift(launched, completed, runs, returns)}


def expected_shift(
    launched: dict[int, int],
    completed: dict[int, int],
    runs: dict[int, tuple[int, int]],
    returns: list[int],
) -> int:
    """A launch precedes its run; a run's end precedes its report, and the return of its wait."""
    if not launched:
        return 0
    least = max(at - runs[number][0] for number, at in launched.items())
    # Only runs whose launch was recorded have a number to find their end by.
    known = [number for number in completed if number in launched]
    if known:
        most = min(completed[number] - runs[number][1] for number in known)
    else:
        most = before_waits(launched, runs, returns)
    if least > 0:
        shift = least
    elif most < 0 and least <= most + 10 * US:
        shift = max(most, least)
    else:
        shift = 0
    return shift if abs(shift) >= 10 * US else 0


def before_waits(
    launched: dict[int, int], runs: dict[int, tuple[int, int]], returns: list[int]
) -> int:
    ends = {number: runs[number][1] for number in launched}
    waited = {}
    for at in returns:
        before = [number for number, launch in launched.items() if launch <= at]
        if before:
            waited[at] = ends[max(before, key=lambda number: launched[number])]
    if not waited:
        return 0
    in_order = sorted(ends.values())
    apart = [later - earlier for earlier, later in itertools.pairwise(in_order)]
    usual = median(apart) if apart else 0
    prompt = [
        at
        for at in waited
        if any(end <= at for end in in_order)
        and at - max(end for end in in_order if end <= at) <= 0.1 * usual
    ]
    if 2 * len(prompt) > len(waited):
        return 0
    return min(at - end for at, end in waited.items())


# --- Results of TensorFlow's tools ---------------------------------------------------------


def test_limits_of_what_tools_state() -> None:
    assert [share(at) for at in (None, 0.0, 100.0, 100.1, -0.1, math.nan)] == [
        None, 0.0, 1.0, None, None, None
    ]  # fmt: skip
    counts = (None, 0.9, 1, 1.5, 65_536, 65_537)
    assert [device_count(at) for at in counts] == [None, None, 1, 1, 65_536, None]
    lengths = (0.0, 1.5, -1.0, math.inf, 2.0**62 / 1e6, 2.0**61 / 1e6)
    assert [whole_ns(at, 1e6) for at in lengths] == [0, 1_500_000, 0, 0, 0, 2**61]


MILLISECONDS = (0.0, 4e-7, 5e-7, 0.25, 1.0, 2.5, 3_600_000.0)


@examples(60)
@given(randoms)
def test_a_step_of_sums(random: Random) -> None:
    parts = {part: random.choice(MILLISECONDS) for part in random.sample(list(StepPart), 3)}
    idle, step = random.choice(MILLISECONDS), random.choice((0.0, 0.0, 4e-7, 5e-7, 4.0))
    bad = random.random() < 0.2
    if bad:
        parts[StepPart.INPUT] = random.choice((-0.1, 3_600_000.1, math.nan, math.inf))
    found = make_step(3, parts, idle_ms=idle, step_ms=step)
    shown = {part: at for part, at in parts.items() if at >= 5e-7}
    whole = step or sum(shown.values()) + idle
    if bad or whole < 5e-7:
        assert found is None
    else:
        assert found is not None
        assert (found.number, found.duration_ms, dict(found.parts_ms)) == (3, whole, shown)


ORDER = (
    StepPart.INPUT, StepPart.COMPILE, StepPart.LAUNCH, StepPart.HOST_COMPUTE, StepPart.TO_DEVICE,
    StepPart.COMPUTE, StepPart.COLLECTIVES, StepPart.BETWEEN_CORES, StepPart.DEVICE_TO_DEVICE,
    StepPart.OUTPUT,
)  # fmt: skip
ON_DEVICE = {
    StepPart.TO_DEVICE: EventKind.COPY, StepPart.COMPUTE: EventKind.KERNEL,
    StepPart.COLLECTIVES: EventKind.COLLECTIVE, StepPart.BETWEEN_CORES: EventKind.COLLECTIVE,
    StepPart.DEVICE_TO_DEVICE: EventKind.COPY, StepPart.OUTPUT: EventKind.COPY,
}  # fmt: skip
ON_HOST = {
    StepPart.INPUT: EventKind.INPUT_WAIT, StepPart.COMPILE: EventKind.COMPILE,
    StepPart.LAUNCH: EventKind.RUNTIME, StepPart.HOST_COMPUTE: EventKind.OPERATOR,
}  # fmt: skip


@examples(60)
@given(randoms)
def test_sums_laid_out_as_events(random: Random) -> None:
    device_type = random.choice(("TPU v5e", "Nvidia GPU (A100)", "", "CPU"))
    steps = []
    for _ in range(random.randint(1, 3)):
        used = random.sample(list(StepPart), random.randint(0, 5))
        parts = {part: float(random.choice((1, 2, 3))) for part in used}
        length = sum(parts.values()) + random.choice((-1, 0, 2))
        steps.append(StepSums(random.choice((-1, 0, 5, 2**31)), max(length, 1.0), parts))
    count = random.choice((None, 1, 4))
    contents = Contents(steps=tuple(steps), device_type=device_type, device_count=count)
    assembler = Assembler()
    devices = add_steps(assembler, contents)
    trace = assembler.finish(Source(path="x", format=""))
    has_device = any(part in ON_DEVICE for step in steps for part in step.parts_ms)
    is_gpu, is_tpu = "GPU" in device_type, "TPU" in device_type
    expected = []
    waiting = []
    start = 0.0
    for step in steps:
        number = step.number if 0 <= step.number < 2**31 else -1
        expected.append((start, start + step.duration_ms, EventKind.STEP, number))
        reached = 0.0
        for part in ORDER:
            length = step.parts_ms.get(part, 0.0)
            if part is StepPart.COLLECTIVES:
                length += step.parts_ms.get(StepPart.WAITING, 0.0)
            begin, reached = reached, reached + length
            kind = ON_DEVICE.get(part) or ON_HOST[part]
            if part is StepPart.INPUT and has_device and not is_gpu:
                kind = EventKind.INFEED_WAIT
            end = min(reached, step.duration_ms)
            if end > begin:
                expected.append((start + begin, start + end, kind, -1))
                if part is StepPart.COLLECTIVES:
                    waiting.append(step.parts_ms.get(StepPart.WAITING, 0.0))
        start += step.duration_ms
    events = trace.events
    found = zip(
        (events.start_ns / 1e6).tolist(), (events.end_ns / 1e6).tolist(),
        [EventKind(kind) for kind in events.kind.tolist()], events.step.tolist(), strict=True,
    )  # fmt: skip
    assert sorted(found) == sorted(expected)
    of_waiting = [at / 1e6 for at in trace.collectives.waiting_ns.tolist() if at >= 0]
    assert sorted(of_waiting) == (sorted(waiting) if any(waiting) else [])
    kind = "gpu" if is_gpu else "tpu" if is_tpu else "other"
    number = (count or 1) if has_device or kind != "other" else 0
    assert [(device.index, device.kind) for device in devices] == [
        (at, kind) for at in range(number)
    ]
