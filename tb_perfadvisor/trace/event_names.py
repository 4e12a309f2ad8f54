"""Events by name."""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from tb_perfadvisor.trace.integer_groups import distinct, is_in
from tb_perfadvisor.trace.tables import Int32
from tb_perfadvisor.trace.trace import Trace


def named(trace: Trace, rows: Int32, pattern: re.Pattern[str]) -> NDArray[np.bool_]:
    """Which events have a name that contains the pattern; shape (n,)."""
    names = trace.events.name[rows]
    return is_in(names, [n for n in distinct(names).tolist() if pattern.search(trace.strings[n])])
