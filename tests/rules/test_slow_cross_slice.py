from __future__ import annotations

from msgspec.structs import replace

from tb_perfadvisor.rules.finding import Table
from tb_perfadvisor.rules.xla.transfers import SlowCrossSlice
from tb_perfadvisor.testing import check_rule, find
from tb_perfadvisor.testing.symbols import Symbol, xla_op
from tb_perfadvisor.trace import EventKind

_ARRAY = "bf16[1000,1024]{1,0:T(8,128)(2,1)}"
_STATE = f"({_ARRAY}, u32[]{{:S(2)}}, token[])"
_BY = '_xla_host_transfer_handler_name="xla_megascale_runtime"'


def transfer(by: str = _BY) -> dict[str, Symbol]:
    def symbol(name: str, body: str) -> Symbol:
        text = (
            f"%{name} = {body}, channel_id=3, is_host_transfer=true, frontend_attributes={{{by}}}"
        )
        made = xla_op(name, text, kind=EventKind.COLLECTIVE, category="recv")
        return replace(made, collective={"operation": "unknown"})

    return {
        "r": symbol("recv.1", f"{_STATE} recv(token[] %after-all.1)"),
        "d": symbol("recv-done.1", f"({_ARRAY}, token[]) recv-done({_STATE} %recv.1)"),
    }


SLOW = """
    cell 1ms
    step  |..........|..........|
    main  |LSSSSSSSSS|LSSSSSSSSS|
    tpu 0 |rXXXXddddX|rXXXXddddX|
"""
FIXED = """
    cell 1ms
    step  |......|......|
    main  |LSSSSS|LSSSSS|
    tpu 0 |rXXXXX|rXXXXX|
"""


def test_saves_what_the_fix_saves() -> None:
    checked = check_rule(SlowCrossSlice, slow=SLOW, fixed=FIXED, saves="4ms", legend=transfer())
    (finding,) = checked.findings
    table = finding.evidence[0]
    assert isinstance(table, Table)
    # 1,000 x 1,024 x 2 B, twice: 512 MB/s in 4 ms each, 256 MB/s in 8 ms.
    assert table.rows == (
        ("recv-done.1", 2, 4_096_000, 8_000_000, 8_000_000, 512_000_000.0, 256_000_000.0),
    )


def test_transfers_of_other_runtimes_do_not_count() -> None:
    other = transfer('_xla_host_transfer_handler_name="callback"')
    assert find(SlowCrossSlice, SLOW, legend=other) == ()


def test_fires_only_above_the_limit() -> None:
    below, above = {"minimum_share": 0.39}, {"minimum_share": 0.41}
    assert len(find(SlowCrossSlice, SLOW, legend=transfer(), settings=below) or ()) == 1
    assert find(SlowCrossSlice, SLOW, legend=transfer(), settings=above) == ()
