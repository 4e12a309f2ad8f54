"""Operators that were called, and what is stored of those at one line of the program."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from math import prod
from typing import Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tb_perfadvisor.machine.facts import Observed, ObservedKind

PRODUCTS: Final = frozenset({"mm", "addmm", "bmm", "baddbmm", "linear", "matmul", "mv", "addmv"})
MASKING: Final = frozenset({"mul", "mul_", "masked_fill", "masked_fill_", "where"})
"""Operators that may drop elements, by what another input holds."""
LOSSES: Final = frozenset({"nll_loss_forward", "nll_loss2d_forward"})
_UNSAFE_VIEWS: Final = frozenset({"unsafe_split", "unsafe_split_with_sizes", "_unsafe_view"})
MOST: Final = 8
"""Places of one kind; those with most time tell enough."""
LEAST_SHARE: Final = 0.01
CALL_NS: Final = 4_000
"""What is left of an operator that has less to do: calling it."""

Place = tuple[str, int, str]
"""Path, line and function of the user's code."""


class Operand(Struct, frozen=True):
    """A tensor that an operator reads or writes."""

    storage: int
    """The number of the memory that it shares with its views."""
    shape: tuple[int, ...]
    has_gradient: bool
    zeros: float | None = None
    """The share of zeros in a sample, where a product or a mask reads it."""
    begins_at: int = 0
    """The element of that memory at which it begins."""

    @property
    def size(self) -> int:
        """How many elements it has."""
        return prod(self.shape)


class Call(Struct, frozen=True):
    """One operator that was called."""

    name: str
    """`addmm`; operators of other libraries with their namespace: `torchvision::nms`."""
    ns: int
    """On the host, or, once it is known that the device limits the steps, on the device."""
    place: Place | None
    inputs: tuple[Operand, ...]
    outputs: tuple[Operand, ...]
    writes: frozenset[int]
    """The storages that it changes."""
    numbers: tuple[object, ...]
    """Its positional arguments without tensors."""
    kind: str
    """`update` by an optimizer, `input` by a loader, `backward`, or `forward`."""
    tracks_gradients: bool
    is_view: bool
    is_random: bool
    sequence: int
    """The number of the autograd node that it runs in, or that was made for it or before it."""
    made: int
    """The number of the autograd node that was made for it or before it."""
    content: int
    """The number of what it computes: see `provenance`."""
    origins: frozenset[int] | None
    """The storages from outside that its result depends on; None if on random numbers, too."""
    checksum: int | None = None
    """Of its results; None if they were not read."""
    rows: NDArray[np.float32] | None = None
    """Sums of the rows of its result, without gradients."""
    leads_to: tuple[tuple[str, int], ...] = ()
    """In the backward pass, what its node leads to: `node` and a number, or `leaf` and the
    parameter's storage."""
    leaf: int | None = None
    """The parameter whose gradient is accumulated."""
    tokens: NDArray[np.int64] | None = None
    """The rows of a table that an embedding reads."""
    hands_out: bool = False
    """Whether it gives the program a result without its gradient, which NumPy takes."""
    in_recurrent_layer: bool = False
    """Whether a layer of PyTorch calls it for each place of a sequence, and not the program."""
    is_recomputed: bool = False
    """Whether checkpointing computes it again, to save memory."""
    device_ns: int = 0
    """The time of what it gave to a device."""
    faults: int = 0
    """Pages of its new results that the system had to clear."""
    is_pointwise: bool = False
    """Whether each element of the result needs one element of each input."""
    counted: float | None = None
    """The share of targets that a loss does not ignore."""
    model_call: int = 0
    """The number of the call of a module that it is a part of; 0 for none."""

    @property
    def computes(self) -> bool:
        """Whether it is more than a view of its inputs."""
        if self.is_view or self.name in _UNSAFE_VIEWS:
            return False
        read = {each.storage for each in self.inputs}
        is_view = bool(self.outputs) and all(each.storage in read for each in self.outputs)
        return bool(self.writes) or not is_view

    @property
    def has_node(self) -> bool:
        """Whether an autograd node was made for a forward call."""
        return self.tracks_gradients and any(each.has_gradient for each in self.inputs)


Steps = Sequence[Sequence[Call]]


def all_calls(steps: Steps) -> Iterator[Call]:
    """Those of all steps, in order."""
    for step in steps:
        yield from step


def total_ns(steps: Steps) -> int:
    """The time of all operators."""
    return max(sum(call.ns for call in all_calls(steps)), 1)


def noted(
    kind: ObservedKind,
    steps: Steps,
    calls: Iterable[Call],
    *,
    amount: Callable[[Sequence[Call]], float] | None = None,
    also_ns: Callable[[Sequence[Call]], int] = lambda calls: 0,
) -> list[Observed]:
    """One observation for each place that calls some operators, those with most time first."""
    by_place: dict[Place, list[Call]] = defaultdict(list)
    for call in calls:
        if call.place is not None:
            by_place[call.place].append(call)
    whole_ns = total_ns(steps)
    found = []
    for (path, line, function), at_place in by_place.items():
        all_ns = total_ns([at_place])
        share = min((all_ns + also_ns(at_place)) / whole_ns, 1.0)
        if share < LEAST_SHARE:
            continue
        # Those of the backward pass are named after the layer.
        forward = [each for each in at_place if each.kind != "backward"]
        costliest = max(forward or at_place, key=lambda call: call.ns)
        named_ns = sum(each.ns for each in at_place if each.name == costliest.name)
        found.append(
            Observed(
                kind=kind,
                operator=operator_of(costliest),
                path=path,
                line=line,
                function=function,
                shapes=shapes_of(costliest),
                calls=round(len(at_place) / max(len(steps), 1)),
                share=share,
                amount=amount(at_place) if amount is not None else named_ns / all_ns,
            )
        )
    return sorted(found, key=lambda each: -each.share)[:MOST]


def operator_of(call: Call) -> str:
    """Its name in profiles: `aten::mm`."""
    return call.name if "::" in call.name else f"aten::{call.name}"


def shapes_of(call: Call) -> str:
    """`(2000, 2000) × (2000, 64)`."""
    shapes = [str(each.shape).replace(",)", ")") for each in call.inputs if each.shape]
    return " × ".join(shapes[:3])[:200]
