"""One kind of XLA operation in each step of a TPU, to try the rules that look for it."""

from __future__ import annotations

from tb_perfadvisor.rules.base import Rule
from tb_perfadvisor.testing import Checked, find
from tb_perfadvisor.testing.symbols import Symbol, xla_op
from tb_perfadvisor.trace import EventKind

SLOW = """
    cell 1ms
    step  |..........|..........|
    main  |LSSSSSSSSS|LSSSSSSSSS|
    tpu 0 |XXXXXXssss|XXXXXXssss|
"""
FIXED = """
    cell 1ms
    step  |......|......|
    main  |LSSSSS|LSSSSS|
    tpu 0 |XXXXXX|XXXXXX|
"""
FUSION = (
    "%fusion.3 = f32[1024,1024]{1,0:T(8,128)} fusion(f32[1024,1024]{1,0:T(8,128)} %p0),"
    " kind=kLoop, calls=%fused_computation.3"
)
"""A fusion that tells what it is by its path alone."""


def legend(text: str, path: str) -> dict[str, Symbol]:
    """What `s` stands for: an operation, by its text in HLO and where the program calls it."""
    name = text.partition(" = ")[0].lstrip("%")
    kind = EventKind.COPY if " copy(" in text else EventKind.KERNEL
    return {"s": xla_op(name, text, kind=kind, path=path, source_line="model.py:37")}


def saved_ns(checked: Checked) -> tuple[int, int, int]:
    """Low, expected and high of both steps, where the finding names the operation's source line."""
    (finding,) = checked.findings
    assert finding.saving is not None
    assert finding.evidence[0].rows[0][3] == "model.py:37"  # type: ignore[union-attr]
    return finding.saving.low_ns, finding.saving.expected_ns, finding.saving.high_ns


def fires(rule: type[Rule], text: str, path: str, *, minimum_share: float | None = None) -> bool:
    """Whether a rule finds the operation; it is applicable in any case."""
    settings = None if minimum_share is None else {"minimum_share": minimum_share}
    found = find(rule, SLOW, legend=legend(text, path), settings=settings)
    assert found is not None
    return len(found) == 1


def check_limit(rule: type[Rule], text: str, path: str) -> None:
    """Check that a rule is silent below its share of the step; the operation takes 4 of 10 ms."""
    assert fires(rule, text, path, minimum_share=0.39)
    assert not fires(rule, text, path, minimum_share=0.41)
