"""What is made of each rank's trace where it is read, so that the traces need not be held."""

from __future__ import annotations

from functools import partial

from tb_perfadvisor.ingest.discovery import Capture
from tb_perfadvisor.ingest.load import Digest
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.ranks.rank_summary import RankSummary, collectives_kept, summarize
from tb_perfadvisor.trace import Run, Trace


def digest_of(capture: Capture) -> Digest | None:
    """How to sum up each worker of a capture; None for one alone, which nothing is compared to."""
    workers = len(capture.workers)
    return partial(summarize_trace, collectives_kept(workers)) if workers > 1 else None


def summarize_trace(max_collectives: int, trace: Trace) -> RankSummary:
    """Sum up one worker's trace, wherever it was read."""
    alone = Run(id="", name="", session="", traces=(trace,))
    return summarize(Signals(alone), max_collectives)
