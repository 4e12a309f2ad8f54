from __future__ import annotations

from tb_perfadvisor.rules.launch.eager import EagerDecode
from tb_perfadvisor.testing import check_rule, find
from tb_perfadvisor.trace import Trace
from tests.support.server_trace import Served, server_trace

# 40 kernels of 50 µs. Between two of them, the device idles for 25 µs: 20 until the next operator
# begins, and its 5 µs.
EAGER = Served(decodes=40, device_us=2_000, kernels=40, replays=False, gap_us=20)
GRAPH = Served(decodes=40, device_us=2_000, kernels=40)
SMALL = Served(decodes=32, device_us=2_000, kernels=40)


def steps(*served: Served) -> Trace:
    return server_trace(served)


def test_saves_what_the_fix_saves() -> None:
    checked = check_rule(
        EagerDecode,
        slow=steps(*[EAGER] * 6),
        fixed=steps(*[GRAPH] * 6),
        saves="975us",  # 39 gaps of 25 µs
        scales=False,  # the cost of recording does not scale
    )
    (finding,) = checked.findings
    assert "5 of 5 decode steps replay no GPU graph: they launch 40 kernels and copies each" in (
        finding.summary
    )


def test_batches_above_the_largest_graph() -> None:
    (found,) = find(EagerDecode, steps(*[SMALL] * 4, *[EAGER] * 3, SMALL)) or ()
    assert found.summary.endswith(" They have 40 requests or more; those of up to 32 replay one.")
    assert found.instance == "3 of 7 decode steps replay none"


def test_steps_that_read_prompts_may_be_launched() -> None:
    prefill = Served(decodes=8, prefills=1, prompt_tokens=99, replays=False, kernels=40, gap_us=20)
    assert find(EagerDecode, steps(*[prefill] * 6)) == ()


def test_just_below_and_just_above_the_limits() -> None:
    for settings, count in (({"minimum_launches": 41}, 0), ({"minimum_launches": 40}, 1)):
        assert len(find(EagerDecode, steps(*[EAGER] * 6), settings=settings) or ()) == count
