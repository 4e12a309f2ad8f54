"""Corrects the times of a TPU's operations by the device's counter.

Each operation has a time on the profile's clock, and one on the device's counter
(`device_offset_ps`, `device_duration_ps`). The profile's clock is adjusted now and then to follow
the host. An adjustment during an operation stretches it: in XProf's `tpu_inference_2`, a copy of
194 ms appears as 299 ms. If the two disagree, the counter is right (XProf's own tools use it), and
the other lines of the plane are shifted accordingly.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from tb_perfadvisor.ingest.xspace.decode.events import Line
from tb_perfadvisor.ingest.xspace.decode.planes import Plane
from tb_perfadvisor.trace.tables import Int64

# Rounding and drift are much smaller. Below this difference, the profile's clock is better, because
# host events use it too.
_MAX_ERROR_SHARE = 0.01


class Correction(Struct, frozen=True):
    """The shift of each time of a plane."""

    at_ns: NDArray[np.float64]
    """Sorted."""
    shift_ns: NDArray[np.float64]

    def apply(self, line: Line) -> Line:
        """Shift a line that has no times on the counter."""
        start = line.start_ns + self._shift(line.start_ns)
        end = line.start_ns + line.duration_ns
        moved_end = np.maximum(end + self._shift(end), start)
        return replace(line, start_ns=start, duration_ns=moved_end - start)

    def _shift(self, at_ns: Int64) -> Int64:
        return np.rint(np.interp(at_ns, self.at_ns, self.shift_ns)).astype(np.int64)


def on_device_clock(plane: Plane) -> tuple[tuple[Line, ...], bool]:
    """The lines of a plane, with times of the device's counter if the profile's clock is distorted.

    Returns:
        The lines, and whether they were shifted.
    """
    operations = next((line for line in plane.lines if line.name == "XLA Ops"), None)
    if operations is None or not len(operations):
        return plane.lines, False
    offset_ps = operations.numbers("device_offset_ps")
    duration_ps = operations.numbers("device_duration_ps")
    if (offset_ps < 0).any() or (duration_ps < 0).any() or (offset_ps > 2**61).any():
        return plane.lines, False
    start = offset_ps // 1000
    end = (offset_ps + np.minimum(duration_ps, 2**61)) // 1000
    error = np.abs(operations.duration_ns - (end - start)).sum(dtype=np.float64)
    if error <= _MAX_ERROR_SHARE * (end - start).sum(dtype=np.float64):
        return plane.lines, False
    apart = int(np.median(operations.start_ns - start))
    moved = replace(operations, start_ns=start + apart, duration_ns=end - start)
    knots = np.concatenate([operations.start_ns, operations.start_ns + operations.duration_ns])
    shifts = np.concatenate([start, end]) + apart - knots
    order = np.argsort(knots, kind="stable")
    correction = Correction(knots[order].astype(np.float64), shifts[order].astype(np.float64))
    lines = tuple(
        moved if line is operations else correction.apply(line) if len(line) else line
        for line in plane.lines
    )
    return lines, True
