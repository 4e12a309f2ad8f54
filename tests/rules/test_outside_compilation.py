from __future__ import annotations

from tb_perfadvisor.rules.finding import Table
from tb_perfadvisor.rules.input.copies import ExposedCopies
from tb_perfadvisor.rules.launch.waits import HostCallback
from tb_perfadvisor.rules.placement.devices import OutsideCompilation
from tb_perfadvisor.testing import check_rule, find
from tb_perfadvisor.testing.symbols import Symbol, operator, xla_op
from tb_perfadvisor.trace import EventKind

# The operations that TensorFlow's bridge creates (tf2xla, HostCompute).
HANDLER = "tf_rendezvous"


def _transfers(handler: str = HANDLER) -> dict[str, Symbol]:
    def transfer(name: str, channel: int, result: str, operand: str, rendezvous: str) -> Symbol:
        text = (
            f"%{name}.1 = {result} {name}({operand}), channel_id={channel}, "
            "is_host_transfer=true, "
            f'frontend_attributes={{_xla_host_transfer_handler_name="{handler}",'
            f'_xla_host_transfer_rendezvous="{rendezvous}"}}'
        )
        return xla_op(f"{name}.1", text, kind=EventKind.COPY, path="summary/HostCompute")

    array = "f32[8,128]{1,0:T(8,128)}"
    return {
        "s": transfer(
            "send", 1, f"({array}, u32[], token[])", f"{array} %x", "host_compute_channel_0_args"
        ),
        "r": transfer(
            "recv-done", 2, f"({array}, token[])", "%recv.1", "host_compute_channel_0_retvals"
        ),
        "o": operator("summary/Pow:Pow", launches=False),
    }


SLOW = """
    cell 1ms
    step  |..........|..........|
    main  |LSSSSSSSSS|LSSSSSSSSS|
    pool  |....oo....|....oo....|
    tpu 0 |XXXsrrrXXX|XXXsrrrXXX|
"""
FIXED = """
    cell 1ms
    step  |......|......|
    main  |LSSSSS|LSSSSS|
    pool  |......|......|
    tpu 0 |XXXXXX|XXXXXX|
"""


def test_saves_what_the_fix_saves() -> None:
    checked = check_rule(
        OutsideCompilation,
        slow=SLOW,
        fixed=FIXED,
        saves="4ms",
        legend=_transfers(),
        framework="tensorflow",
    )
    (finding,) = checked.findings
    assert finding.saving is not None
    assert (finding.saving.low_ns, finding.saving.expected_ns) == (0, 8_000_000)
    assert finding.summary == (
        "The TPU core waits 4.00 ms of each step (40.0 %) for operators that run on the host"
        " (2 transfers per step), mostly in recv-done.1."
    )
    transfers, meanwhile = finding.evidence[:2]
    assert isinstance(transfers, Table)
    assert transfers.rows[0] == ("recv-done.1", "2", "summary/HostCompute", 2, 6_000_000)
    assert isinstance(meanwhile, Table)
    # 2 of 4 ms of host work in each step overlap the wait.
    assert meanwhile.rows == (("summary/Pow:Pow", 2, 4_000_000),)


def test_exposed_copies_does_not_report_it_again() -> None:
    legend = _transfers()
    assert find(ExposedCopies, SLOW, legend=legend, framework="tensorflow") == ()
    assert find(HostCallback, SLOW, legend=legend, framework="tensorflow") == ()


def test_transfers_between_slices_are_communication() -> None:
    legend = _transfers("xla_megascale_runtime")
    assert find(OutsideCompilation, SLOW, legend=legend, framework="tensorflow") == ()


def test_just_below_and_just_above_the_limit() -> None:
    below, above = {"minimum_share": 0.39}, {"minimum_share": 0.41}
    for settings, count in ((below, 1), (above, 0)):
        findings = find(
            OutsideCompilation,
            SLOW,
            legend=_transfers(),
            framework="tensorflow",
            settings=settings,
        )
        assert len(findings or ()) == count
