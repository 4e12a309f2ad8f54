"""Products of products that another order would compute with fewer multiplications."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from math import prod
from typing import Final

from tb_perfadvisor.instrument.examination.calls import PRODUCTS, Call, Operand, has_node
from tb_perfadvisor.instrument.examination.needed import is_view, readers_of
from tb_perfadvisor.instrument.examination.noted import Steps, kept_share, noted
from tb_perfadvisor.machine.facts import Observed

_MOST_KEPT: Final = 0.6
_SCALING: Final = frozenset({"mul", "mul_", "div", "div_", "neg"})
"""What may also be done to one of the factors, or to the end result, if it scales whole rows or
columns."""
_COPYING: Final = frozenset({"clone", "_to_copy", "contiguous"})
_SUMS: Final = frozenset({"sum", "mean"})
"""Sums of the rows of a product follow from sums of the rows of a factor."""


def costly_orders(steps: Steps) -> list[Observed]:
    """Two products in a row, forward and backward."""
    found: list[Call] = []
    kept: dict[int, float] = {}
    between_ns: dict[int, int] = defaultdict(int)
    """What scales, copies and sums the result of a product takes, forward and backward."""
    for step in steps:
        readers = readers_of(step)
        products: dict[int, float] = {}
        others: dict[int, int] = {}
        for number, call in enumerate(step):
            if call.kind != "forward" or call.name not in PRODUCTS or is_view(call):
                continue
            chain, share = _chain(step, readers, number)
            if share > _MOST_KEPT:
                continue
            for each in chain:
                if each.name in PRODUCTS and id(each) not in kept:
                    found.append(each)
                    kept[id(each)] = share
                    products |= {each.sequence: share} if has_node(each) else {}
                elif each.name not in PRODUCTS:
                    between_ns[id(call)] += each.ns
                    others |= {each.sequence: id(call)} if has_node(each) else {}
        for call in step:
            if call.kind == "backward" and call.sequence in products and not is_view(call):
                found.append(call)
                kept[id(call)] = products[call.sequence]
            elif call.kind == "backward" and call.sequence in others:
                between_ns[others[call.sequence]] += call.ns

    def also_ns(calls: Sequence[Call]) -> int:
        return sum(between_ns[id(call)] for call in calls)

    return noted("product order", steps, found, amount=kept_share(kept), also_ns=also_ns)


def _chain(
    step: Sequence[Call], readers: dict[int, list[tuple[int, int]]], first: int
) -> tuple[list[Call], float]:
    """A product, what scales or copies its result, and the product that reads it.

    Also the multiplications that the other order needs, as a share of those of both products.
    """
    chain, at = [step[first]], first
    while True:
        reading = [(r, place) for r, place in readers.get(at, ()) if step[r].name not in _SUMS]
        chain += [step[r] for r, _ in readers.get(at, ()) if step[r].name in _SUMS]
        if len(reading) != 1:
            return chain, 1.0
        at, place = reading[0]
        chain.append(step[at])
        if step[at].name in PRODUCTS:
            return chain, _share_in_other_order(step[first], step[at], place)
        if not _is_passed(step[at], place):
            return chain, 1.0


def _is_passed(call: Call, place: int) -> bool:
    """Whether a result is only scaled, by rows or columns, or copied."""
    shape = call.inputs[place].shape
    if not call.outputs or call.outputs[0].shape != shape:
        return False
    if call.name in _COPYING:
        return True
    others = [each for at, each in enumerate(call.inputs) if at != place]
    scales = all(each.size <= max(shape[-2:], default=0) or _is_scale(each) for each in others)
    return call.name in _SCALING and len(shape) > 1 and scales


def _is_scale(other: Operand) -> bool:
    """Whether it holds one factor for each row, or each column, of each matrix."""
    return len(other.shape) < 2 or 1 in other.shape[-2:]


def _share_in_other_order(first: Call, second: Call, place: int) -> float:
    """The multiplications that the other order needs, as a share; 1 if it is unknown.

    With a result of p × q between the products, k as the inner size of the first, and w as the
    outer size of what the second one multiplies it with, they take p q (k + w) now, and
    k w (p + q) in the other order.
    """
    between, inner = first.outputs[0].shape, _inner(first)
    read = second.inputs[place]
    if len(between) < 2 or len(read.shape) < 2 or inner is None:
        return 1.0
    p, q = between[-2:]
    is_same = read.size == prod(between) and sorted(read.shape[-2:]) == sorted((p, q))
    factors = second.inputs[1:3] if _has_addend(second) else second.inputs[:2]
    if not is_same or not any(each is read for each in factors) or len(factors) < 2:
        return 1.0
    result, free = second.outputs[0], _inner(second)
    if free is None or result.size * free % (p * q):
        return 1.0
    # The second product takes batch × p × q × w multiplications.
    batch = prod(between[:-2])
    w = result.size * free // (batch * p * q)
    return inner * w * (p + q) / max(p * q * (inner + w), 1)


def _inner(product: Call) -> int | None:
    """The size that a product sums over."""
    factors = product.inputs[1:3] if _has_addend(product) else product.inputs[:2]
    if len(factors) < 2 or not product.outputs or len(factors[0].shape) < 2:
        return None
    return factors[0].shape[-1]


def _has_addend(product: Call) -> bool:
    return product.name in ("addmm", "baddbmm", "addmv")
