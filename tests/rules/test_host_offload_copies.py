from __future__ import annotations

from tb_perfadvisor.rules.finding import Table
from tb_perfadvisor.rules.input.exposed_copies import ExposedCopies
from tb_perfadvisor.rules.xla.host_offload_copies import HostOffloadCopies
from tb_perfadvisor.testing import check_rule, find
from tb_perfadvisor.testing.symbols import Symbol, xla_op
from tb_perfadvisor.trace import EventKind

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
    # In each of two steps, 6 of 10 ms are copies and 4 ms are compute.
    assert (saving.low_ns, saving.expected_ns, saving.high_ns) == (
        8_000_000,
        12_000_000,
        12_000_000,
    )


def test_copies_within_the_device_do_not_count() -> None:
    within = _copies("f32[1024,256]{1,0:T(8,128)S(1)}", ON_DEVICE)
    assert find(HostOffloadCopies, SLOW, legend=within) == ()


def test_exposed_copies_does_not_report_the_same_copies() -> None:
    assert find(ExposedCopies, SLOW, legend=LEGEND) == ()


def test_copies_to_the_host_are_named() -> None:
    (finding,) = find(HostOffloadCopies, SLOW, legend=_copies(ON_HOST, ON_DEVICE)) or ()
    assert finding.summary.endswith("mostly for copy-done.4, device to host.")


def test_fires_only_above_the_limit() -> None:
    assert find(HostOffloadCopies, SLOW, legend=LEGEND, settings={"minimum_share": 0.61}) == ()
    below = {"minimum_share": 0.59}
    assert len(find(HostOffloadCopies, SLOW, legend=LEGEND, settings=below) or ()) == 1
