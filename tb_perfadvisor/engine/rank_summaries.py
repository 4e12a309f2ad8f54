"""Summarizes each rank's trace where it is read, so that not all traces are held in memory."""

from __future__ import annotations

from functools import partial

from tb_perfadvisor.ingest.captures import Capture
from tb_perfadvisor.ingest.load import Summarize
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.ranks.rank_summary import collectives_kept, summarize
from tb_perfadvisor.trace import Run, Trace
from tb_perfadvisor.trace.rank_summary import RankSummary


def summarizer_of(capture: Capture) -> Summarize | None:
    """The function that summarizes each worker of a capture; None if there is only one worker."""
    workers = len(capture.workers)
    return partial(summarize_trace, collectives_kept(workers)) if workers > 1 else None


def summarize_trace(max_collectives: int, trace: Trace) -> RankSummary:
    """Summarize one worker's trace, in whichever process it was read."""
    run = Run(id="", name="", session="", traces=(trace,))
    return summarize(Signals(run), max_collectives)
