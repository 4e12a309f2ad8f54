"""Gradients that are computed and then dropped."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from tb_perfadvisor.instrument.examination.calls import Call, Steps, all_calls, noted
from tb_perfadvisor.machine.facts import Observed

_ADDS: Final = frozenset({"add_", "add"})
_ZEROING: Final = frozenset({"zero_", "_foreach_zero_"})
_OF_LOST: Final = 0.5
"""Gradients of inputs and of weights take about as long, in layers that have both."""

_Node = tuple[int, tuple[str, int]]
"""A run of the backward pass, and a node in it."""


def dropped(steps: Steps) -> list[Observed]:
    """Backward operators that only lead to gradients which no update uses."""
    calls = list(all_calls(steps))
    runs = _runs(calls)
    lost = _dropped_leaves(calls, runs)
    if not lost:
        return []
    leads_to: dict[_Node, set[tuple[str, int]]] = defaultdict(set)
    for call, run in zip(calls, runs, strict=True):
        if call.kind == "backward" and call.leaf is None:
            leads_to[run, ("node", call.sequence)].update(call.leads_to)
    needed: dict[_Node, bool] = {}
    # Autograd runs nodes before those that they lead to, so that the last one is known first.
    for node in reversed(leads_to):
        needed[node] = any(_is_needed((node[0], each), needed, lost) for each in leads_to[node])
    found = []
    for call, run in zip(calls, runs, strict=True):
        if call.kind != "backward" or call.leaf is not None:
            continue
        node = run, ("node", call.sequence)
        makes_lost = not all(_is_needed((run, each), needed, lost) for each in leads_to[node])
        if not needed[node] or makes_lost:
            found.append(replace(call, ns=int(call.ns * (_OF_LOST if needed[node] else 1.0))))
    return noted("dropped gradients", steps, found)


def _runs(calls: Sequence[Call]) -> list[int]:
    """A number for each stretch of backward operators without others between them."""
    runs, number, was_backward = [], 0, False
    for call in calls:
        is_backward = call.kind == "backward"
        number += is_backward and not was_backward
        was_backward = is_backward
        runs.append(number)
    return runs


def _dropped_leaves(calls: Sequence[Call], runs: Sequence[int]) -> set[tuple[int, int]]:
    """Gradients that begin anew, or end, without an update since: by run and parameter."""
    lost: set[tuple[int, int]] = set()
    waiting: dict[int, list[int]] = defaultdict(list)
    gradient_of: dict[int, int] = {}
    leaves = {call.leaf for call in calls if call.leaf is not None}
    updated: set[int] = set()
    for call, run in zip(calls, runs, strict=True):
        if call.leaf is not None:
            if call.name not in _ADDS:
                # A gradient that lies in memory unlike its parameter takes several operators.
                before = waiting.pop(call.leaf, ())
                lost.update((each, call.leaf) for each in before if each != run)
                for each in call.outputs:
                    gradient_of[each.storage] = call.leaf
            elif call.inputs:
                gradient_of[call.inputs[0].storage] = call.leaf
            waiting[call.leaf].append(run)
            continue
        if call.kind == "backward" or call.is_view:
            continue
        if call.name in _ZEROING:
            for each in call.inputs:
                leaf = gradient_of.get(each.storage)
                if leaf is not None:
                    lost.update((before, leaf) for before in waiting.pop(leaf, ()))
            continue
        for each in call.inputs:
            leaf = each.storage if each.storage in leaves else gradient_of.get(each.storage)
            is_used = leaf is not None and (call.writes or call.kind == "update")
            if leaf is not None and is_used:
                waiting.pop(leaf, None)
                updated.add(leaf)
    if updated:
        # Of the last step, nothing tells what follows; but what is never updated is lost.
        for leaf, before in waiting.items():
            if leaf not in updated:
                lost.update((each, leaf) for each in before)
    return lost


def _is_needed(node: _Node, needed: dict[_Node, bool], lost: set[tuple[int, int]]) -> bool:
    run, (kind, number) = node
    if kind == "leaf":
        return (run, number) not in lost
    return needed.get(node, True)  # a node that runs no operator may lead anywhere
