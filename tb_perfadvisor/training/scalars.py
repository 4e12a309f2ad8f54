"""The scalars that a training run logged, as columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tb_perfadvisor.trace.tables import Float64, Int64


class ScalarSeries(Struct, frozen=True):
    """The values of one tag in the order in which they were logged; columns of shape (points,)."""

    step: Int64
    unix_ns: Int64
    """Wall-clock time at which the value was logged."""
    value: Float64

    def __len__(self) -> int:
        """Number of points."""
        return len(self.step)

    def select(self, rows: NDArray[np.bool_] | NDArray[np.intp]) -> ScalarSeries:
        """A selection of the points."""
        return ScalarSeries(self.step[rows], self.unix_ns[rows], self.value[rows])


class RunScalars(Struct, frozen=True):
    """All scalars of one run."""

    series: Mapping[str, ScalarSeries]
    """By tag."""


def merge_series(parts: Iterable[ScalarSeries]) -> ScalarSeries:
    """The points of several files in order of time; of equal times, in the order of the files."""
    columns = list(parts)
    step = np.concatenate([part.step for part in columns])
    unix_ns = np.concatenate([part.unix_ns for part in columns])
    value = np.concatenate([part.value for part in columns])
    order = np.argsort(unix_ns, kind="stable")
    return ScalarSeries(step[order], unix_ns[order], value[order])
