from __future__ import annotations

import pytest

from tb_perfadvisor.rules.xla.checkpoint_on_cpu import CheckpointOnCpu
from tb_perfadvisor.testing import check_rule, find
from tb_perfadvisor.testing.symbols import Symbol
from tb_perfadvisor.trace import EventKind

DOT = "%dot.3 = f32[256,1024]{1,0} dot(f32[256,512]{1,0} %x, f32[512,1024]{1,0} %w)"
BACKWARD = "jit(step)/transpose(jvp(jvp()))/checkpoint"
SLOW = """
    cell 1ms
    step |..........|..........|
    main |.ffrrrbbb.|.ffrrrbbb.|
"""
FIXED = """
    cell 1ms
    step |.......|.......|
    main |.ffbbb.|.ffbbb.|
"""


def legend(path: str) -> dict[str, Symbol]:
    paths = {"f": "jit(step)/jvp()/dot_general", "r": path, "b": f"{BACKWARD}/transpose"}
    return {
        letter: Symbol(EventKind.OPERATOR, f"dot.{letter}", hlo={"text": DOT, "path": path})
        for letter, path in paths.items()
    }


def test_what_is_kept_need_not_be_computed_again() -> None:
    checked = check_rule(
        CheckpointOnCpu,
        slow=SLOW,
        fixed=FIXED,
        saves="3ms",
        legend=legend(f"{BACKWARD}/rematted_computation/dot_general"),
        framework="jax",
        exactly=False,
    )
    (finding,) = checked.findings
    assert finding.saving is not None
    # 90 % of 3 ms in each of two steps; half at least, all at most.
    assert finding.saving.expected_ns == 2 * 2_700_000
    assert (finding.saving.low_ns, finding.saving.high_ns) == (3_000_000, 6_000_000)


@pytest.mark.parametrize("path", [f"{BACKWARD}/dot_general", "jit(step)/dot_general"])
def test_gradients_are_needed(path: str) -> None:
    assert find(CheckpointOnCpu, SLOW, legend=legend(path), framework="jax") == ()
