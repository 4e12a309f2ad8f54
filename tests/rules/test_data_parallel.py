from __future__ import annotations

from tb_perfadvisor.rules.communication.redundancy import DataParallel
from tb_perfadvisor.testing import check_rule, draw, find
from tb_perfadvisor.testing.symbols import host, operator
from tb_perfadvisor.trace import Trace

# One process broadcasts (b) and scatters (s), runs forward on two devices, and gathers (g).
SLOW = """
    cell 1ms
    step    |............|............|
    main    |fbbbsso'.ggo|fbbbsso'.ggo|
    gpu0 7  |.......KK..K|.......KK..K|
    gpu1 7  |.......KK...|.......KK...|
"""
# With one process per device, each process only computes.
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
    assert "drives 2 devices from one process" in checked.findings[0].summary


def test_one_device_is_not_reported() -> None:
    lines = [line for line in SLOW.splitlines() if "gpu1" not in line]
    assert find(DataParallel, drawn("\n".join(lines))) == ()


def test_gathers_outside_of_data_parallel_do_not_count() -> None:
    assert find(DataParallel, drawn(SLOW.replace("f", "."))) == ()
