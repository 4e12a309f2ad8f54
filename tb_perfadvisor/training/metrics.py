"""What the tags of a run mean: which one is the step time, which one the loss."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Literal

import msgspec

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Kind = Literal[
    "step-time",
    "steps-per-second",
    "samples-per-second",
    "tokens-per-second",
    "loss",
    "learning-rate",
]
_TABLE = Path(__file__).with_name("metrics.toml")
_EVALUATION = re.compile(
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


class _Table(msgspec.Struct, frozen=True):
    metric: tuple[Metric, ...]


@cache
def known_metrics() -> tuple[Metric, ...]:
    """All entries of `metrics.toml`, in their order."""
    return msgspec.convert(tomllib.loads(_TABLE.read_text(encoding="utf-8")), _Table).metric


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
