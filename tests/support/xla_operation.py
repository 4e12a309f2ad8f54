"""A drawn TPU program with one kind of XLA operation, for the rules that look for such kinds."""

from __future__ import annotations

from tb_perfadvisor.rules.base import Rule
from tb_perfadvisor.testing import Checked, draw, find
from tb_perfadvisor.testing.symbols import Symbol, xla_op
from tb_perfadvisor.trace import EventKind

DEVICE = "TPU v5 lite"
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
"""A fusion that only its path identifies."""


def legend(text: str, path: str) -> dict[str, Symbol]:
    """Draw `s` as an operation with this HLO text, called at this path of the program."""
    name = text.partition(" = ")[0].lstrip("%")
    kind = EventKind.COPY if " copy(" in text else EventKind.KERNEL
    return {"s": xla_op(name, text, kind=kind, path=path, source_line="model.py:37")}


def saved_ns(checked: Checked) -> tuple[int, int, int]:
    """Low, expected and high saving over both steps; the finding must name the source line."""
    (finding,) = checked.findings
    assert finding.saving is not None
    assert finding.evidence[0].rows[0][3] == "model.py:37"  # type: ignore[union-attr]
    return finding.saving.low_ns, finding.saving.expected_ns, finding.saving.high_ns


def fires(rule: type[Rule], text: str, path: str, *, minimum_share: float | None = None) -> bool:
    """Whether a rule fires on the operation; it must be applicable."""
    settings = None if minimum_share is None else {"minimum_share": minimum_share}
    trace = draw(SLOW, legend=legend(text, path), device=DEVICE)
    findings = find(rule, trace, settings=settings)
    assert findings is not None
    return len(findings) == 1


def check_limit(rule: type[Rule], text: str, path: str) -> None:
    """Check that a rule fires only above its limit; the operation takes 4 of 10 ms."""
    assert fires(rule, text, path, minimum_share=0.39)
    assert not fires(rule, text, path, minimum_share=0.41)
