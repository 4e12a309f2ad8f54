from __future__ import annotations

from tb_perfadvisor.rules.memory.at_peak import UnlimitedCache
from tb_perfadvisor.testing import check_rule, find
from tb_perfadvisor.trace import Trace
from tests.support.memory_snapshots import Snapshot, frames


def cached(entries: dict[int, int], *, freed: int = 0) -> Trace:
    """Steps whose batches vary in size, and a cache that gets an entry in some of them."""
    made = Snapshot()
    segment = made.segment(8 << 30)
    batch, cache = frames(("/p/model.py", 3, "forward")), frames(("/p/cache.py", 7, "get"))
    at = segment + (4 << 30)
    for step in range(12):
        made.annotate(f"ProfilerStep#{step}")
        size = (1 << 30) + (step % 3 << 28)
        made.allocate(segment, size, batch)
        entry = entries.get(step, 0)
        if entry:
            made.allocate(at, entry, cache)
            if step == freed:
                made.free(at, entry)
            else:
                made.holds(segment, at, entry, cache)
            at += entry
        made.wait(1_000).free(segment, size)
    return made.trace()


def test_a_cache_that_only_grows_has_no_limit() -> None:
    entries = dict.fromkeys((3, 4, 7, 9), 128 << 20)
    checked = check_rule(UnlimitedCache, slow=cached(entries), fixed=cached({}))
    (finding,) = checked.findings
    # 4 of 128 MiB; with the largest batch of 1.5 GiB at the same time, 2 GiB at the peak.
    assert finding.summary == (
        "p/cache.py:7 get allocates 4 tensors in 4 of 12 parts of the history, and none of them is"
        " freed: 512 MiB so far, of 2.00 GiB at the peak. It looks like a cache without a limit."
    )
    assert finding.remedies[0].change == "limited-cache"


def test_caches_with_a_limit_and_those_that_are_full_are_left_alone() -> None:
    entries = dict.fromkeys((3, 4, 7, 9), 128 << 20)
    assert not find(UnlimitedCache, cached(entries, freed=7))
    assert not find(UnlimitedCache, cached(dict.fromkeys((2, 3, 4), 128 << 20)))
    # A quarter of the peak of 2 GiB.
    assert find(UnlimitedCache, cached(entries), settings={"minimum_share": 0.24})
    assert not find(UnlimitedCache, cached(entries), settings={"minimum_share": 0.26})
