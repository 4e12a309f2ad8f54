"""One kind of XLA operation in each step of a TPU, to try the rules that look for it."""

from __future__ import annotations

from tb_perfadvisor.rules.base import Rule
from tb_perfadvisor.testing import check_rule, find
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


def check_saving(rule: type[Rule], text: str, path: str, *, expected_ns: int) -> None:
    """Check that a rule claims the four milliseconds of `s` in each of the two steps.

    Args:
        rule: The rule.
        text: The operation in HLO.
        path: Where the program calls it.
        expected_ns: What is expected to go in both steps together.
    """
    checked = check_rule(rule, slow=SLOW, fixed=FIXED, saves="4ms", legend=_legend(text, path))
    (finding,) = checked.findings
    assert finding.saving is not None
    saving = finding.saving
    assert (saving.low_ns, saving.expected_ns, saving.high_ns) == (0, expected_ns, 8_000_000)
    assert finding.evidence[0].rows[0][3] == "model.py:37"  # type: ignore[union-attr]


def fires(rule: type[Rule], text: str, path: str, *, minimum_share: float | None = None) -> bool:
    """Whether a rule finds the operation; it is applicable in any case."""
    settings = None if minimum_share is None else {"minimum_share": minimum_share}
    found = find(rule, SLOW, legend=_legend(text, path), settings=settings)
    assert found is not None
    return len(found) == 1


def check_limit(rule: type[Rule], text: str, path: str) -> None:
    """Check that a rule is silent below its share of the step; the operation takes 4 of 10 ms."""
    assert fires(rule, text, path, minimum_share=0.39)
    assert not fires(rule, text, path, minimum_share=0.41)


def _legend(text: str, path: str) -> dict[str, Symbol]:
    name = text.partition(" = ")[0].lstrip("%")
    kind = EventKind.COPY if " copy(" in text else EventKind.KERNEL
    return {"s": xla_op(name, text, kind=kind, path=path, source_line="model.py:37")}
