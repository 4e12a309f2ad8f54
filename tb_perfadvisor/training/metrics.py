"""What the tags of a run mean: which one is the step time, which one the loss."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tb_perfadvisor.patterns import regex
from tb_perfadvisor.toml_files import parse
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


Kind = Literal[
    "step-time",
    "steps-per-second",
    "samples-per-second",
    "tokens-per-second",
    "loss",
    "learning-rate",
]
_TABLE = Path(__file__).with_name("metrics.toml")
_EVALUATION = regex(
    r"(?:.*/)?(?:eval|val|valid|validation|evaluation|test)(?:[/_-].*|)|.*[/_](?:val|eval)"
)


class Metric(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An entry of `metrics.toml`."""

    kind: Kind
    pattern: str
    source: str
    unit: Literal["s", "ms"] = "s"
    devices: Literal["one", "all"] | None = None
    """Whether a rate is that of one device or of the whole job; None if the source leaves it
    open."""


@cache
def known_metrics() -> tuple[Metric, ...]:
    """All entries of `metrics.toml`, in their order."""
    table = parse(_TABLE.read_text(encoding="utf-8"))
    return tuple(
        msgspec.convert(each | {"kind": kind}, Metric) for kind in table for each in table[kind]
    )


def is_evaluation(tag: str) -> bool:
    """Whether a tag is logged when the run evaluates its model.

    >>> is_evaluation("eval/loss"), is_evaluation("val_loss"), is_evaluation("validation/accuracy")
    (True, True, True)
    >>> is_evaluation("train/loss"), is_evaluation("evaluator_queue")
    (False, False)
    """
    return _EVALUATION.fullmatch(tag) is not None


def find_metrics(tags: Iterable[str]) -> dict[Kind, tuple[str, Metric]]:
    """The tag of each kind that a run logs, with its entry; of several, the first in the table."""
    names = sorted(tag for tag in tags if not is_evaluation(tag))
    found: dict[Kind, tuple[str, Metric]] = {}
    for metric in known_metrics():
        pattern = re.compile(metric.pattern)
        tag = next((tag for tag in names if pattern.fullmatch(tag)), None)
        if tag is not None:
            found.setdefault(metric.kind, (tag, metric))
    return found
