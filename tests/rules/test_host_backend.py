from __future__ import annotations

from tb_perfadvisor.rules.communication.transfers import HostBackend
from tb_perfadvisor.testing import check_rule, find

SLOW = """
    cell 1ms
    step   |..........|..........|
    main   |o'..CCCCC.|o'..CCCCC.|
    gpu 7  |KKKK......|KKKK......|
"""
FIXED = """
    cell 1ms
    step   |.....|.....|
    main   |o'SS.|o'SS.|
    gpu 7  |KKKK.|KKKK.|
"""


def test_saves_what_the_fix_saves() -> None:
    checked = check_rule(HostBackend, slow=SLOW, fixed=FIXED, saves="5ms", fixed_applies=False)
    assert "idles 5.00 ms of each step (50.0 %)" in checked.findings[0].summary


def test_host_collectives_beside_device_work_pass() -> None:
    assert find(HostBackend, SLOW.replace("KKKK......", "KKKKKKKKK.")) == ()
