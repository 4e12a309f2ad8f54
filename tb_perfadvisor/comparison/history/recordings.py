"""Which captures are recordings of one run."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from tb_perfadvisor.comparison.pairing import Choice, place_of
from tb_perfadvisor.errors import UsageError
from tb_perfadvisor.ingest.captures import Listing
from tb_perfadvisor.ingest.recordings import order_of, series_of


def recordings_of(listings: Sequence[Listing]) -> Mapping[str, list[Choice]]:
    """The recordings of each run, the oldest first.

    Args:
        listings: Of one path: each run that was recorded more than once. Of several paths: one
            time line in their order, with a recording each.

    Raises:
        UsageError: If no run was recorded twice.
    """
    if len(listings) > 1:
        choices = [Choice(listing, capture) for listing in listings for capture in listing.captures]
        if len(choices) > len(listings):
            raise UsageError(
                "several paths must hold one recording each.",
                hint="Name runs or sessions, the oldest first; or one logdir.",
            )
        return {choices[-1].place[-1]: choices}
    (listing,) = listings
    series: dict[tuple[str, str], list[Choice]] = defaultdict(list)
    for capture in listing.captures:
        series[series_of(capture)].append(Choice(listing, capture))
    repeated = {
        key: sorted(choices, key=lambda choice: order_of(choice.capture))
        for key, choices in series.items()
        if len(choices) > 1
    }
    if not repeated:
        raise UsageError(
            "contains no run that was recorded twice.",
            where=listing.root,
            hint="Name the recordings one by one, the oldest first.",
        )
    runs = Counter(run for run, _ in repeated)
    return {
        _name(run, listing) if runs[run] == 1 else f"{_name(run, listing)} ({format})": choices
        for (run, format), choices in repeated.items()
    }


def _name(run: str, listing: Listing) -> str:
    """A run's name; that of the directory for the root of a listing."""
    return place_of(listing.root, run)[-1] if run == "." else run
