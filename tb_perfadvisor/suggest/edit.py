"""An edit of a file, and the kinds of edits that there are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from tb_perfadvisor.advice import Value
from tb_perfadvisor.signals.workload.workload import Part
from tb_perfadvisor.suggest.code import Code, Node

Values = Mapping[str, Value]
"""What a finding computed for its remedy, by name: the bucket size, the number of workers."""


class Edit(NamedTuple):
    """An edit that would carry out a remedy."""

    node: Node
    """Where it is."""
    what: str = ""
    """What it does, in a few words: `num_workers=4, persistent_workers=True`."""
    replacements: tuple[tuple[Node, Node], ...] = ()
    unsure: str = ""
    """Why a program cannot make it safely; empty if it can."""
    note: str = ""
    """What to check after it."""
    present: str = ""
    """What the code has already of what the remedy asks for: `num_workers=4`."""


class Fix(NamedTuple):
    """A mechanical way to carry out remedies.

    The catalog of advice says which changes it carries out. Remedies are chosen to fit the program,
    so a fix never applies to another kind of program.
    """

    id: str
    """As in the catalog."""
    mentions: tuple[str, ...]
    """A file that contains none of these texts needs no look."""
    find: Callable[[Code, Values], Iterator[Edit]]
    """Finds the changes in a file."""
    refuses: str
    """Where it gives the place and the reason instead, in a sentence."""
    part: Part | None = None
    """A part that the profile shows if the profiled program had what is `present`. If the profile
    does not show it, the code has changed since."""
