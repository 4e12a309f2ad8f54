"""Changes to nested lists and dictionaries: what JSON or a pickle holds."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any

from tests.fuzz.values import NUMBERS, TEXTS

Node = tuple[Any, Any]
"""A container and the key or index of one of its values."""


def change_tree(root: Any, random: Random, keys: Sequence[str]) -> None:
    """Change something anywhere: a value, a key, or the nesting.

    Args:
        root: A dictionary or list; changed in place.
        random: Chooses the change.
        keys: Keys that the format knows, at least one.
    """
    choice = random.randrange(8)
    if choice == 5:
        _rename(root, random, keys)
    elif choice > 5:
        _set(root, random, keys)
    else:
        _CHANGES[choice](root, random)


def _nodes(root: Any, random: Random, wanted: int = 400) -> list[Node]:
    """Some values of the tree."""
    found: list[Node] = []
    waiting = [root]
    while waiting and len(found) < wanted:
        container = waiting.pop(random.randrange(len(waiting)))
        pairs: Iterator[Node] = iter(
            container.items() if isinstance(container, dict) else enumerate(container)
        )
        for key, value in pairs:
            found.append((container, key))
            if isinstance(value, dict | list):
                waiting.append(value)
    return found


def any_value(random: Random) -> Any:
    """A number, text, constant or container at which readers have failed."""
    choice = random.randrange(5)
    if choice < 2:
        return random.choice(NUMBERS)
    if choice == 2:
        return random.choice(TEXTS)
    return random.choice((None, True, False, [], {}, [[]], {"": {}}, [None], -1, 0))


def _replace(root: Any, random: Random) -> None:
    if nodes := _nodes(root, random):
        container, key = random.choice(nodes)
        container[key] = any_value(random)


def _delete(root: Any, random: Random) -> None:
    if nodes := _nodes(root, random):
        container, key = random.choice(nodes)
        del container[key]


def _swap(root: Any, random: Random) -> None:
    if nodes := _nodes(root, random):
        (one, key), (other, place) = random.choice(nodes), random.choice(nodes)
        # Containers may be shared, so that one inside itself would be written without end.
        one[key], other[place] = copy.deepcopy(other[place]), copy.deepcopy(one[key])


def _nest(root: Any, random: Random) -> None:
    if nodes := _nodes(root, random):
        container, key = random.choice(nodes)
        for _ in range(random.choice((1, 2, 30))):
            container[key] = random.choice(([container[key]], {"args": container[key]}))


def _rename(root: Any, random: Random, keys: Sequence[str]) -> None:
    nodes = [(node, key) for node, key in _nodes(root, random) if isinstance(node, dict)]
    if nodes:
        container, key = random.choice(nodes)
        container[random.choice(keys)] = container.pop(key)


def _set(root: Any, random: Random, keys: Sequence[str]) -> None:
    """Give a container a key that the format knows, also where it is missing."""
    containers = [node for node, _ in _nodes(root, random) if isinstance(node, dict)]
    if containers:
        random.choice(containers)[random.choice(keys)] = any_value(random)


_CHANGES: tuple[Callable[[Any, Random], None], ...] = (_replace, _replace, _delete, _swap, _nest)
