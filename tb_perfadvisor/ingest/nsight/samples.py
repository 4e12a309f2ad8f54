"""Samples of host threads: the function in which each was when Nsight Systems looked."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from tb_perfadvisor.ingest.nsight.database import Database, of_type
from tb_perfadvisor.ingest.nsight.processes import Processes
from tb_perfadvisor.trace import Assembler

_SAMPLES: Final = "COMPOSITE_EVENTS"
_CALLS: Final = "SAMPLING_CALLCHAINS"


def add_samples(
    assembler: Assembler, database: Database, processes: Processes, threads: NDArray[np.int64]
) -> None:
    """Add the samples of some threads, each with its innermost function that has a name.

    Args:
        assembler: Receives them.
        database: The export.
        processes: The processes of the export.
        threads: `globalTid` of the threads that matter, sorted.

    Raises:
        UnreadableProfileError: If the database is damaged.
    """
    if not database.has(_SAMPLES, "id", "start", "globalTid"):
        return
    if not database.has(_CALLS, "id", "symbol", "stackDepth"):
        return
    samples = database.integers(_SAMPLES, {"id": "id", "at": "start", "thread": "globalTid"})
    is_named = f"{of_type('unresolved', int)} = 0" if database.has(_CALLS, "unresolved") else ""
    columns = {"id": "id", "depth": "stackDepth", "symbol": "symbol", "module": "module"}
    calls = database.integers(_CALLS, columns, is_named)
    order = np.lexsort((calls["depth"], calls["id"]))
    ids = calls["id"][order]
    innermost = order[np.append(True, ids[1:] != ids[:-1])] if ids.size else order
    ids = calls["id"][innermost]
    place = np.searchsorted(ids, samples["id"])
    place[place == len(ids)] = 0
    chosen = np.isin(samples["thread"], threads)
    if len(ids):
        chosen &= ids[place] == samples["id"]
    if not len(ids) or not chosen.any():
        return
    call = innermost[place[chosen]]
    assembler.add_samples(
        samples["at"][chosen],
        track=processes.host_tracks(assembler, samples["thread"][chosen]),
        function=_interned(assembler, database, calls["symbol"][call]),
        library=_interned(assembler, database, calls["module"][call]),
    )


def _interned(
    assembler: Assembler, database: Database, texts: NDArray[np.int64]
) -> NDArray[np.int32]:
    """Strings by their ids in the export; -1 for those that it lacks."""
    ids, of_text = np.unique(texts, return_inverse=True)
    found = [database.strings.get(each, "") for each in ids.tolist()]
    rows = [assembler.intern(text) if text else -1 for text in found]
    return np.array(rows, dtype=np.int32)[of_text.reshape(-1)]
