"""What the captures of a scan are to one another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import msgspec

from tb_perfadvisor.contract.partners import Partner, suggest_partners
from tb_perfadvisor.plugin.catalog import Entry


class Neighbors(msgspec.Struct, frozen=True):
    """Found once for each scan: with thousands of captures, that takes a noticeable time."""

    partners: Mapping[str, tuple[Partner, ...]]
    """What to compare each capture with, by its id."""
    recordings: Mapping[object, int]
    """How often the run of a series was recorded."""


def find_neighbors(entries: Iterable[Entry]) -> Neighbors:
    """The neighbors of all captures of a scan."""
    known = tuple(entries)
    named = [msgspec.structs.replace(entry.capture, id=entry.id, run=entry.run) for entry in known]
    return Neighbors(suggest_partners(named), Counter(entry.series for entry in known))
