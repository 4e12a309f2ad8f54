from __future__ import annotations

import io
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tb_perfadvisor.errors import PerfAdvisorError
from tb_perfadvisor.ingest.xspace.interpret.detail_texts import (
    parse_copy,
    parse_launch,
    parse_shapes,
)
from tb_perfadvisor.ingest.xspace.interpret.hlo.operation import parse_operation
from tb_perfadvisor.ingest.xspace.reader import read_xplane
from tests.support.device_xspaces import gpu_xspace, tpu_xspace
from tests.support.night import examples
from tests.support.xspaces import SOURCE, Drawing, Reference

DRAWINGS = {"gpu": gpu_xspace().bytes(), "tpu": tpu_xspace().bytes()}


@pytest.mark.parametrize("name", sorted(DRAWINGS))
@examples(20)
@given(
    changes=st.lists(
        st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=10
    ),
    removed=st.tuples(st.integers(0, 10**6), st.integers(0, 20)),
)
def test_damaged_device_planes(
    name: str, changes: list[tuple[int, int]], removed: tuple[int, int]
) -> None:
    data = bytearray(DRAWINGS[name])
    for at, byte in changes:
        data[at % len(data)] = byte
    at, count = removed[0] % len(data), removed[1]
    del data[at : at + count]
    with suppress(PerfAdvisorError):
        read_xplane(io.BytesIO(bytes(data)), SOURCE)


@given(st.text())
def test_any_text_is_parsed_or_unknown(text: str) -> None:
    parse_operation(text)
    parse_operation(f"%x = {text}", category=text)
    parse_launch(text)
    parse_copy(text)
    parse_shapes(text)


extreme = st.one_of(
    st.sampled_from([0, -1, 2**31, 2**32, 2**62, 2**63 - 1, -(2**63), 2**64 - 1]),
    st.floats(allow_nan=True, allow_infinity=True),
    st.text(max_size=5),
    st.text(max_size=5).map(Reference),
    st.binary(max_size=5),
)
STATS = (
    *("step_num", "correlation_id", "program_id", "flops", "bytes_accessed", "hlo_category"),
    *("group_id", "occupancy_pct", "bytes_allocated", "bytes_available", "index_on_host"),
    *("allocation_bytes", "addr", "allocator_name", "device_offset_ps", "device_duration_ps"),
    *("_pt", "_p", "_ct", "_c", "is_func", "hlo_op", "hlo_module", "kernel_details", "source"),
)


@examples(20)
@given(
    shared=st.dictionaries(st.sampled_from(STATS), extreme, max_size=8),
    own=st.dictionaries(st.sampled_from(STATS), extreme, max_size=8),
    of_plane=st.dictionaries(
        st.sampled_from(
            [
                *("memory_size", "core_count", "compute_cap_major", "compute_cap_minor"),
                *("peak_teraflops_per_second", "device_vendor", "profile_start_time"),
            ]
        ),
        extreme,
    ),
)
def test_extreme_stats(
    shared: dict[str, object], own: dict[str, object], of_plane: dict[str, object]
) -> None:
    drawing = Drawing()
    for plane_name, line_name in (
        ("/host:CPU", "python"),
        ("/device:GPU:0", "Stream #1"),
        ("/device:GPU:0", "Steps"),
        ("/device:TPU:1", "XLA Ops"),
        ("/device:TPU:1", "XLA Modules"),
    ):
        plane = drawing.plane(plane_name, **of_plane)
        line = drawing.line(plane, line_name)
        for name in ("MemoryAllocation", "DoEnqueueProgram", "EagerExecute", "jit_f(5)"):
            drawing.event(plane, line, name, 0, 5, shared=dict(shared), **own)
    drawing.plane("Task Environment", **of_plane)
    with suppress(PerfAdvisorError):
        drawing.read()
