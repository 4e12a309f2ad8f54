"""Classifies GPU kernels by name, by row of a plane's event kinds."""

from __future__ import annotations

import re
from typing import Any, Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tb_perfadvisor.ingest.kernels.collective_names import (
    collective_dtype,
    collective_operation,
    is_collective,
)
from tb_perfadvisor.ingest.kernels.kernel_names import classify_kernels
from tb_perfadvisor.ingest.xspace.interpret.detail_texts import copy_direction
from tb_perfadvisor.trace.tables import Int64


class KernelNames(Struct, frozen=True):
    """Attributes of names; shape (n,) each."""

    family: NDArray[np.int64]
    precision: NDArray[np.int64]
    tensor_cores: NDArray[np.int64]
    is_collective: NDArray[np.bool_]
    collective: list[str]
    """The operation of each collective."""
    collective_dtype: list[str]
    is_copy: NDArray[np.bool_]
    is_memset: NDArray[np.bool_]
    direction: NDArray[np.int64]
    """The direction of a copy."""


_COPY: Final = re.compile(r"(?i)memcpy|__amd_rocclr_copy")
_MEMSET: Final = re.compile(r"(?i)memset|__amd_rocclr_fill")


def classify_names(names: list[str], ran: Int64) -> KernelNames:
    """Classify kernels by name.

    Args:
        names: The names of all event kinds.
        ran: The rows of the kinds on streams; others are not kernels.
    """
    kernels = [names[row] for row in ran.tolist()]
    classes = classify_kernels(kernels)
    communicates = np.array([is_collective(name) for name in kernels], dtype=bool)
    collective, dtype_of = ["unknown"] * len(names), [""] * len(names)
    for row in ran[communicates].tolist():
        collective[row] = collective_operation(names[row])
        dtype_of[row] = collective_dtype(names[row])

    def column(values: NDArray[Any], dtype: Any) -> NDArray[Any]:
        expanded = np.zeros(len(names), dtype=dtype)
        expanded[ran] = values
        return expanded

    return KernelNames(
        family=column(classes.family, np.int64),
        precision=column(classes.precision, np.int64),
        tensor_cores=column(classes.tensor_cores, np.int64),
        is_collective=column(communicates, bool),
        collective=collective,
        collective_dtype=dtype_of,
        is_copy=column(np.array([bool(_COPY.match(name)) for name in kernels]), bool),
        is_memset=column(np.array([bool(_MEMSET.match(name)) for name in kernels]), bool),
        direction=column(np.array([int(copy_direction(name)) for name in kernels]), np.int64),
    )
