"""Everything a rule's test needs: drawn traces, a builder and `check_rule`."""

from tb_perfadvisor.testing.builder import TraceBuilder, ms, run_of, us
from tb_perfadvisor.testing.check_rule import Checked, check_rule, find
from tb_perfadvisor.testing.lanes import DrawingError, draw
from tb_perfadvisor.testing.symbols import (
    Symbol,
    collective,
    copy,
    host,
    kernel,
    operator,
    xla_op,
)

__all__ = [
    "Checked",
    "DrawingError",
    "Symbol",
    "TraceBuilder",
    "check_rule",
    "collective",
    "copy",
    "draw",
    "find",
    "host",
    "kernel",
    "ms",
    "operator",
    "run_of",
    "us",
    "xla_op",
]
