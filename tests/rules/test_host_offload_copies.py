from __future__ import annotations

import pytest
from msgspec.structs import replace

from tb_perfadvisor.ingest.xspace.interpret.hlo.operation import parse_operation
from tb_perfadvisor.rules.finding import Table
from tb_perfadvisor.rules.input.copies import ExposedCopies
from tb_perfadvisor.rules.xla.transfers import HostOffloadCopies
from tb_perfadvisor.testing import TraceBuilder, check_rule, draw, find
from tb_perfadvisor.testing.symbols import Symbol, xla_op
from tb_perfadvisor.trace import CopyDirection, EventKind, Precision

# As recorded in a program that streams arrays from the host (jit_f, TPU v6e).
ON_HOST = "f32[1024,256]{1,0:T(8,128)S(5)}"
ON_DEVICE = "f32[1024,256]{1,0:T(8,128)}"


def _copies(target: str, source: str) -> dict[str, Symbol]:
    """A start `s` and the done `d` that waits for it."""
    both = f"({target}, {source}, u32[]{{:S(2)}})"
    return {
        "s": xla_op(
            "copy-start.4",
            f"%copy-start.4 = {both} copy-start({source} %param.2)",
            kind=EventKind.COPY,
            category="copy-start",
        ),
        "d": xla_op(
            "copy-done.4",
            f"%copy-done.4 = {target} copy-done({both} %copy-start.4)",
            kind=EventKind.COPY,
            category="copy-done",
        ),
    }


SLOW = """
    cell 1ms
    step  |..........|..........|
    main  |LSSSSSSSSS|LSSSSSSSSS|
    tpu 0 |sXXdddddXX|sXXdddddXX|
"""
FIXED = """
    cell 1ms
    step  |.....|.....|
    main  |LSSSS|LSSSS|
    tpu 0 |sXXXX|sXXXX|
"""
LEGEND = _copies(ON_DEVICE, ON_HOST)


def test_saves_what_the_fix_saves() -> None:
    # The start takes a millisecond before and after, because a drawing has no shorter events.
    checked = check_rule(
        HostOffloadCopies,
        slow=SLOW,
        fixed=FIXED,
        saves="5ms",
        legend=LEGEND,
        settings={"minimum_share": 0.21},
    )
    (finding,) = checked.findings
    table = finding.evidence[0]
    assert isinstance(table, Table)
    # 1,024 x 256 numbers of 4 bytes; 2 ms are computed between start and done.
    assert table.rows[0] == (
        "copy-done.4",
        "host to device",
        1_048_576,
        2,
        10_000_000,
        4_000_000,
    )


def test_overlap_hides_no_more_than_the_rest_of_the_step() -> None:
    (finding,) = find(HostOffloadCopies, SLOW, legend=LEGEND) or ()
    assert finding.saving is not None
    saving = finding.saving
    # In each of two steps, 6 of 10 ms are copies and 4 ms are compute. How much memory is free is
    # unknown, so the middle is expected.
    assert (saving.low_ns, saving.expected_ns, saving.high_ns) == (
        8_000_000,
        10_000_000,
        12_000_000,
    )


@pytest.mark.parametrize(("peak_gib", "expected_ms"), [(10, 12), (31, 10)])
def test_arrays_that_fit_are_expected_to_stay_on_the_device(
    peak_gib: int, expected_ms: int
) -> None:
    # An array of a mebibyte fits into 90 % of 32 GiB beside 10 GiB, and not beside 31 GiB.
    builder = TraceBuilder().device("TPU v6 Lite", memory_bytes=32 << 30)
    recorded = builder.memory(0, 0, allocated_bytes=peak_gib << 30, device=0).build()
    trace = draw(SLOW, legend=LEGEND)
    trace = replace(trace, memory=recorded.memory, devices=recorded.devices)
    (finding,) = find(HostOffloadCopies, trace) or ()
    assert finding.saving is not None
    assert finding.saving.expected_ns == expected_ms * 1_000_000


def test_copies_within_the_device_do_not_count() -> None:
    within = _copies("f32[1024,256]{1,0:T(8,128)S(1)}", ON_DEVICE)
    assert find(HostOffloadCopies, SLOW, legend=within) == ()


def test_exposed_copies_does_not_report_the_same_copies() -> None:
    assert find(ExposedCopies, SLOW, legend=LEGEND) == ()


def test_copies_to_the_host_are_named() -> None:
    (finding,) = find(HostOffloadCopies, SLOW, legend=_copies(ON_HOST, ON_DEVICE)) or ()
    assert finding.summary.endswith("mostly for copy-done.4, device to host.")


# The slices that a scan with offloaded activations copies in each trip (libtpu 0.0.52, TPU v6e).
STACK = "bf16[6,16384,512]{2,1,0:T(8,128)(2,1)S(5)}"
SLICE = "bf16[1,16384,512]{2,1,0:T(8,128)(2,1)}"
SLICES = {
    "device to host": (
        f"%dynamic-update-slice-done = {STACK} dynamic-update-slice-done((({STACK}, {SLICE},"
        f" s32[]{{:T(128)}}), {STACK}, u32[]{{:S(2)}}) %dynamic-update-slice-start)"
    ),
    "host to device": (
        f"%dynamic-slice-done = {SLICE} dynamic-slice-done((({STACK}, s32[]{{:T(128)}}), {SLICE},"
        " u32[]{:S(2)}) %dynamic-slice-start)"
    ),
}


@pytest.mark.parametrize("direction", SLICES)
def test_slices_of_an_array_on_the_host_are_copies(direction: str) -> None:
    text = SLICES[direction]
    operation = parse_operation(text)
    assert operation.kind == EventKind.COPY
    assert operation.precision == Precision.UNKNOWN
    assert operation.copy_direction == CopyDirection[direction.upper().replace(" ", "_")]
    # 16,384 x 512 numbers of 2 bytes: the slice, not the stack.
    assert operation.copy_bytes == 16_777_216
    symbols = {"s": xla_op("s", text.replace("-done", "-start")), "d": xla_op("d", text)}
    symbols = {letter: replace(symbol, kind=EventKind.COPY) for letter, symbol in symbols.items()}
    (finding,) = find(HostOffloadCopies, SLOW, legend=symbols) or ()
    assert isinstance(finding.evidence[0], Table)
    assert finding.evidence[0].rows[0][1:3] == (direction, 16_777_216)


def test_slices_within_the_device_are_computed() -> None:
    text = SLICES["host to device"].replace("S(5)", "")
    assert parse_operation(text).kind == EventKind.KERNEL


def test_fires_only_above_the_limit() -> None:
    assert find(HostOffloadCopies, SLOW, legend=LEGEND, settings={"minimum_share": 0.61}) == ()
    below = {"minimum_share": 0.59}
    assert len(find(HostOffloadCopies, SLOW, legend=LEGEND, settings=below) or ()) == 1
