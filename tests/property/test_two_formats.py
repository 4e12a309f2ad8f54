"""A drawn trace gives the same results in every format.

This covers the breakdown, steps, device time, precision, kernels, copies, input, waits, placement,
collectives, and every rule's findings and savings. The only exceptions are facts that a format
cannot contain; they are listed with reasons.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from typing import Any, Literal
from zlib import crc32

import msgspec
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from tb_perfadvisor.engine.analyze import analyze_run
from tb_perfadvisor.engine.config import Config
from tb_perfadvisor.hardware import identify
from tb_perfadvisor.ingest.chrome.reader import read_chrome
from tb_perfadvisor.ingest.kineto.reader import read_kineto
from tb_perfadvisor.ingest.nsight.reader import read_nsight
from tb_perfadvisor.ingest.xspace.reader import read_xplane
from tb_perfadvisor.report.build import build_report
from tb_perfadvisor.signals import Cause, Signals, collectives_of
from tb_perfadvisor.testing import TraceBuilder, draw, run_of, us
from tb_perfadvisor.testing.symbols import device_alphabet, host_alphabet
from tb_perfadvisor.trace import CopyDirection, EventKind, Framework, Run, Source, Trace
from tb_perfadvisor.trace.intervals import total_ns
from tests.support.drawings import drawings
from tests.support.night import IS_NIGHT, examples
from tests.support.writers import write_chrome, write_kineto, write_nsight, write_xplane

Format = Literal["kineto", "nsight", "xplane"]

SOURCE = Source(path="x", format="")
H100 = "NVIDIA H100 80GB HBM3"
FRAMEWORKS: tuple[Framework, ...] = ("pytorch", "tensorflow", "jax")

# Letters that a format cannot represent.
NOT_CARRIED: dict[Format, dict[str, str]] = {
    "kineto": {
        "d": "PyTorch does not record a loader's workers, which are other processes",
        "XYI": "PyTorch records no XLA operations",
    },
    "nsight": {
        "d": "PyTorch does not record a loader's workers, which are other processes",
        "XYI": "Nsight Systems records no XLA operations",
        "p": "Nsight Systems records no Python functions",
        "C": "a range does not say how large its tensors are",
        "s": "only Kineto records what the host waits for as an event of a stream",
    },
    "xplane": {
        "C": "only XLA's own thunks record the operation of host collectives",
        "v": "only Kineto records its own overhead",
        "s": "only Kineto records what streams wait for",
    },
}
NOT_IN_XSPACES = (EventKind.HOST_COLLECTIVE, EventKind.OVERHEAD, EventKind.DEVICE_SYNC)


def read(trace: Trace, form: Format) -> Trace:
    if form == "kineto":
        return next(read_kineto(io.BytesIO(write_kineto(trace)), SOURCE))
    if form == "nsight":
        return read_nsight({"x": lambda: io.BytesIO(write_nsight(trace))}, SOURCE)
    return read_xplane(io.BytesIO(write_xplane(trace)), SOURCE)


def truths(run: Run) -> dict[str, Any]:
    """All results of a run, without names that a writer may replace."""
    analysis = analyze_run(run, Config())
    signals, report = analysis.signals, build_report(analysis, Config())
    events, device, attribution = signals.trace.events, signals.device, signals.attribution
    copies, placement = signals.trace.copies, signals.placement
    waits, collectives = signals.synchronizations, collectives_of(signals)

    def spans(rows: Any) -> list[tuple[int, int]]:
        return list(
            zip(events.start_ns[rows].tolist(), events.duration_ns[rows].tolist(), strict=True)
        )

    launches = events.launched_by[device.rows]
    is_compute = events.kind[device.rows] == EventKind.KERNEL
    return {
        "steps": msgspec.to_builtins(report.steps),
        "between steps": signals.between_steps.tolist(),
        "device": (device.index, device.used, device.busy.tolist(), device.waits.tolist()),
        # Tables of an export are not in order of time, so events of the same time may swap places.
        "work": sorted(
            zip(
                spans(device.rows),
                events.kind[device.rows].tolist(),
                [int(events.start_ns[row]) if row >= 0 else -1 for row in launches.tolist()],
                strict=True,
            )
        ),
        "widths": sorted(signals.precision[is_compute].tolist()),
        "kernels": [
            (kernel.name, kernel.family, kernel.count, kernel.total_ns)
            for kernel in signals.kernels
        ],
        "copies": (
            spans(copies.row),
            copies.direction.tolist(),
            copies.size_bytes.tolist(),
            copies.pageable.tolist(),
        ),
        "breakdown": {
            cause.value: intervals.tolist()
            for cause, intervals in attribution.intervals.items()
            if len(intervals)
        },
        "input": signals.input_waits.tolist(),
        "waits": (spans(waits.row), waits.induced_ns.tolist()),
        "placement": (
            spans(placement.host_rows),
            placement.device_count,
            placement.device_ns,
            placement.host_ns,
        ),
        "collectives": (
            spans(collectives.row),
            collectives.operation,
            collectives.exposed_ns.tolist(),
            collectives.transfer_ns.tolist(),
        ),
        "overview": msgspec.to_builtins(replace(report.overview, costliest=[])),
        # Formats name calls of the host and their lines differently.
        "costliest": [
            (work.name, work.count, work.time_ns)
            for work in report.overview.costliest
            if not work.is_idle
        ],
        "findings": [
            (
                finding.rule_id,
                finding.refines,
                finding.severity,
                msgspec.to_builtins(finding.saving),
            )
            for finding in report.findings
        ],
        "together": msgspec.to_builtins(report.combined_saving),
        "outcomes": {outcome.rule_id: outcome.status for outcome in report.outcomes},
    }


def same(found: dict[str, Any], drawn: dict[str, Any]) -> None:
    for what, wanted in drawn.items():
        assert found[what] == wanted, what


def tables(trace: Trace) -> dict[str, Any]:
    """The rows of a trace's tables, without names that a writer may replace, in order of time."""
    events, tracks, kernels, copies = trace.events, trace.tracks, trace.kernels, trace.copies
    start_ns, launch = events.start_ns, events.launched_by
    device = tracks.device[events.track]

    def rows(at: Any, *columns: Any) -> list[tuple[Any, ...]]:
        lists = [each if isinstance(each, tuple) else each.tolist() for each in columns]
        times = start_ns[at].tolist(), events.duration_ns[at].tolist()
        return sorted(zip(*times, *lists, strict=True))

    # A profile of a TPU always has a line of its programs.
    all_but_derived = events.kind < EventKind.DEVICE_SYNC
    columns = (
        *(events.kind, events.step, device),
        np.where(device >= 0, tracks.thread[events.track], -1),
        np.where(launch >= 0, start_ns[launch], -1),
    )
    is_compute = events.kind[kernels.row] == EventKind.KERNEL  # names of collectives differ
    classes = (kernels.family[is_compute], kernels.precision[is_compute])
    operations = trace.hlo.text[trace.hlo_events.op]
    return {
        "events": rows(all_but_derived, *(column[all_but_derived] for column in columns)),
        "kernels": rows(kernels.row[is_compute], *classes),
        "copies": rows(copies.row, copies.direction, copies.size_bytes, copies.pageable),
        "collectives": rows(trace.collectives.row, trace.texts(trace.collectives.operation)),
        "operations": rows(trace.hlo_events.row, trace.texts(operations)),
        "devices": [identify(device).name for device in trace.devices],
    }


# --- all drawings of rule tests ----------------------------------------------------------------


DRAWINGS = drawings()


def test_every_rule_has_drawings() -> None:
    names = {name.split(":")[0] for name in DRAWINGS}
    assert len(DRAWINGS) > 30
    assert {"test_input_stall", "test_launch_bound", "test_padded_shapes"} <= names


def drawn_and_read(text: str) -> Iterator[tuple[Trace, Trace]]:
    """A drawing, and what each format that can carry it gives; at night for each framework."""
    is_tpu = re.search(r"^\s*tpu ", text, re.MULTILINE) is not None
    chosen = FRAMEWORKS[crc32(text.encode()) % len(FRAMEWORKS)]
    for framework in FRAMEWORKS:
        in_xplane = IS_NIGHT or framework == chosen
        in_kineto = framework == "pytorch" and not is_tpu
        if not (in_xplane or in_kineto):
            continue
        trace = draw(text, device="TPU v5 lite" if is_tpu else H100, framework=framework)
        # See NOT_CARRIED.
        if in_xplane and not len(trace.rows(*NOT_IN_XSPACES)):
            yield trace, read(trace, "xplane")
        if in_kineto:
            yield trace, read(trace, "kineto")


@pytest.mark.parametrize("name", DRAWINGS)
def test_drawings_of_the_rules(name: str) -> None:
    for trace, found in drawn_and_read(DRAWINGS[name]):
        same(tables(found), tables(trace))


@pytest.mark.nightly
@pytest.mark.parametrize("name", DRAWINGS)
def test_reports_on_drawings_of_the_rules(name: str) -> None:
    for trace, found in drawn_and_read(DRAWINGS[name]):
        same(truths(run_of(found)), truths(run_of(trace)))


# --- random drawings ---------------------------------------------------------------------------


def letters(known: Any, form: Format) -> str:
    """Letters that may be drawn for a format, all equally likely."""
    left_out = "".join(NOT_CARRIED[form])
    return "....." + "".join(letter for letter in known if letter not in left_out)


def lane(known: str) -> st.SearchStrategy[str]:
    """Three steps of ten cells; repeating a letter is as likely as changing it."""
    run = st.tuples(st.sampled_from(known), st.integers(1, 4)).map(lambda part: part[0] * part[1])
    step = st.lists(run, min_size=10, max_size=10).map(lambda runs: "".join(runs)[:10])
    return st.lists(step, min_size=3, max_size=3).map("|".join)


def with_options(trace: Trace) -> Trace:
    """Add recorder options, which drawings don't have: a file with Python frames has stacks."""
    has_stacks = True if len(trace.rows(EventKind.PYTHON)) else trace.source.has_stacks
    return replace(trace, source=replace(trace.source, has_stacks=has_stacks))


def drawing(form: Format, framework: Framework) -> st.SearchStrategy[Trace]:
    host = lane(letters(host_alphabet(framework), form))
    device = lane(letters(device_alphabet("gpu"), form))
    return st.tuples(host, host, device, device).map(
        lambda lanes: draw(
            f"""
            cell 1ms
            step   |..........|..........|..........|
            main   |{lanes[0]}|
            worker |{lanes[1]}|
            gpu 7  |{lanes[2]}|
            gpu 20 |{lanes[3]}|
            """,
            device=H100,
            framework=framework,
        )
    )


by_chance = examples(8)


@by_chance
@given(drawing("kineto", "pytorch"))
def test_kineto(trace: Trace) -> None:
    same(truths(run_of(read(trace, "kineto"))), truths(run_of(with_options(trace))))


# A copy and a collective that begin at the same time on two streams end one gap.
TWO_AT_ONCE = draw(
    """
    cell 1ms
    step   |..........|..........|..........|
    main   |zz........|ozuuuu...B|..cc......|
    worker |...B......|.uc.......|B....ccc..|
    gpu 7  |..........|.gg.......|....mm....|
    gpu 20 |gggg......|uNN.qqq...|...NNNNbbb|
    """,
    device=H100,
)


@by_chance
@given(drawing("nsight", "pytorch"))
@example(TWO_AT_ONCE)
def test_nsight(trace: Trace) -> None:
    found = read(trace, "nsight")
    # Names tell the framework, and whether operators have shapes, if there are any.
    source = replace(
        trace.source, framework=found.source.framework, has_shapes=found.source.has_shapes
    )
    same(truths(run_of(found)), truths(run_of(replace(trace, source=source))))


@by_chance
@given(st.sampled_from(FRAMEWORKS).flatmap(lambda framework: drawing("xplane", framework)))
def test_xplane(trace: Trace) -> None:
    same(truths(run_of(read(trace, "xplane"))), truths(run_of(with_options(trace))))


@examples(8)
@given(
    st.lists(lane(letters(device_alphabet("tpu"), "xplane")), min_size=1, max_size=2),
    # Without waits: one that returns before the work that it waits for moves the device's clock.
    lane(letters(host_alphabet("jax"), "xplane").replace("S", "")),
)
def test_xplane_of_tpu_cores(cores: list[str], main: str) -> None:
    lanes = "\n".join(f"tpu {number} |{cells}|" for number, cells in enumerate(cores))
    text = f"cell 1ms\nstep |..........|..........|..........|\nmain |{main}|\n{lanes}"
    trace = draw(text, device="TPU v5 lite")
    same(truths(run_of(read(trace, "xplane"))), truths(run_of(trace)))


wire = lane(letters("KKKNN", "kineto"))


@examples(8)
@given(wire, wire)
def test_two_workers(first: str, second: str) -> None:
    """Collectives show which worker the others wait for, with or without ranks."""
    workers = [
        draw(
            f"cell 1ms\nstep |..........|..........|..........|\ngpu 7 |{cells}|",
            device=H100,
            rank=rank,
            world_size=2,
            host=f"host-{rank}",
        )
        for rank, cells in enumerate((first, second))
    ]
    same(truths(run_of(*(read(trace, "kineto") for trace in workers))), truths(run_of(*workers)))
    # Where the number of ranks is unknown, others may be missing, and less is proven.
    hosts = [
        replace(trace, source=replace(trace.source, rank=None, world_size=None))
        for trace in workers
    ]
    same(truths(run_of(*(read(trace, "xplane") for trace in workers))), truths(run_of(*hosts)))


# --- columns without a letter ------------------------------------------------------------------

counts = st.integers(1, 2**20)


@st.composite
def detailed(draw_one: st.DrawFn) -> Trace:
    builder = TraceBuilder(has_memory=True).device(
        "NVIDIA A100-SXM4-80GB", memory_bytes=80 << 30, multiprocessors=108
    )
    builder.step(0, 0, us(1000))
    for slot in range(draw_one(st.integers(1, 4))):
        start = us(100 * slot)
        builder.kernel(
            device_alphabet("gpu")["K"].name,
            start,
            start + draw_one(st.integers(1, us(40))),
            grid_blocks=draw_one(counts),
            block_threads=draw_one(st.integers(1, 1024)),
            registers=draw_one(st.integers(1, 255)),
            shared_memory_bytes=draw_one(st.integers(0, 2**17)),
            occupancy_share=draw_one(st.integers(1, 100)) / 100,
            **device_alphabet("gpu")["K"].kernel,
        )
        builder.copy(
            draw_one(st.sampled_from([CopyDirection.HOST_TO_DEVICE, CopyDirection.DEVICE_TO_HOST])),
            start + us(50),
            start + us(60),
            size_bytes=draw_one(counts),
            pageable=draw_one(st.integers(0, 1)),
        )
        change = draw_one(st.sampled_from([1, -1])) * draw_one(counts)
        in_use = draw_one(st.integers(0, 80 << 30))
        builder.memory(start + 7, change, allocated_bytes=in_use, address=draw_one(counts))
    return builder.build()


@examples(10)
@given(detailed())
def test_columns(trace: Trace) -> None:
    for form in ("kineto", "xplane"):
        found = read(trace, form)
        for table, columns in (
            ("kernels", ("grid_blocks", "block_threads", "registers", "shared_memory_bytes")),
            ("kernels", ("occupancy_share", "family", "precision", "tensor_cores")),
            ("copies", ("direction", "size_bytes", "pageable")),
            ("memory", ("at_ns", "device", "allocated_bytes", "bytes", "address")),
        ):
            for column in columns:
                values = [getattr(getattr(each, table), column).tolist() for each in (found, trace)]
                assert values[0] == values[1], (form, table, column)
        # An XSpace does not name GPUs; its other facts identify them.
        described = [
            [
                (identify(device).name, device.memory_bytes, device.multiprocessors)
                for device in each.devices
            ]
            for each in (found, trace)
        ]
        assert described[0] == described[1]
        same(truths(run_of(found)), truths(run_of(trace)))


# --- the Chrome export -------------------------------------------------------------------------

# Without `z`, `Z`, `B`, `u`: work between steps is recognized by PyTorch's names, which are not
# read from an export without a framework.
CHROME_HOST = "....DDooOLSARcp"
CHROME_DEVICE = "....KKKHHkNNhqgm"


def breakdown(trace: Trace) -> dict[str, int]:
    attribution = Signals(run_of(trace)).attribution
    return {
        cause.value: total_ns(intervals)
        for cause, intervals in attribution.intervals.items()
        if len(intervals)
    }


@by_chance
@given(lane(CHROME_HOST), lane(CHROME_HOST), lane(CHROME_DEVICE), lane(CHROME_DEVICE))
def test_the_breakdown_of_a_chrome_export(main: str, worker: str, compute: str, comm: str) -> None:
    trace = draw(
        f"""
        cell 1ms
        step   |..........|..........|..........|
        main   |{main}|
        worker |{worker}|
        gpu 7  |{compute}|
        gpu 20 |{comm}|
        """,
        device=H100,
    )
    chrome = read_chrome(io.BytesIO(write_chrome(trace)), SOURCE)
    # The export has no versions, and drawn events have names of several frameworks.
    source = replace(chrome.source, framework=trace.source.framework)
    assert breakdown(replace(chrome, source=source)) == breakdown(trace)


def test_the_breakdown_sums_to_the_window() -> None:
    trace = draw(
        """
        cell 1ms
        step   |..........|..........|
        main   |DDDDoo....|DDDDoo....|
        gpu 7  |.....KKKKK|.....KKKKK|
        """
    )
    # Of each step's ten cells, four are input and five the kernel. In the cell between them, the
    # launch takes half a millisecond (a quarter of its operator) and 20 us more to arrive; then
    # work is queued.
    assert breakdown(trace) == {
        Cause.INPUT.value: 2 * 4_000_000,
        Cause.LAUNCHING.value: 2 * 520_000,
        Cause.QUEUED.value: 2 * 480_000,
        Cause.COMPUTE_32.value: 2 * 5_000_000,
    }
