from __future__ import annotations

from tb_perfadvisor.rules.communication.data_parallel import DataParallel
from tb_perfadvisor.testing import check_rule, draw, find
from tb_perfadvisor.testing.symbols import host, operator
from tb_perfadvisor.trace import Trace

# One process: broadcast (b) and scatter (s), forward on two devices, gather (g).
SLOW = """
    cell 1ms
    step    |............|............|
    main    |fbbbsso'.ggo|fbbbsso'.ggo|
    gpu0 7  |.......KK..K|.......KK..K|
    gpu1 7  |.......KK...|.......KK...|
"""
# A process per device does nothing but compute.
FIXED = """
    cell 1ms
    step    |.....|.....|
    main    |fo'.o|fo'.o|
    gpu0 7  |.KK.K|.KK.K|
"""
LEGEND = {
    "f": host("DataParallel.forward"),
    "b": operator("Broadcast", launches=False),
    "s": operator("Scatter", launches=False),
    "g": operator("Gather", launches=False),
}


def drawn(text: str) -> Trace:
    return draw(text, legend=LEGEND)


def test_saves_what_the_fix_saves() -> None:
    checked = check_rule(DataParallel, slow=drawn(SLOW), fixed=drawn(FIXED), saves="7ms")
    assert "on 2 devices from one process" in checked.findings[0].summary


def test_on_one_device_nothing_is_parallel() -> None:
    lines = [line for line in SLOW.splitlines() if "gpu1" not in line]
    assert find(DataParallel, drawn("\n".join(lines))) == ()


def test_other_operators_that_gather_are_none() -> None:
    assert find(DataParallel, drawn(SLOW.replace("f", "."))) == ()
