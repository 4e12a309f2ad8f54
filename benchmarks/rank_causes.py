"""Measures how often the cause comes first, and the right rank is named, in programs of four ranks.

    python benchmarks/rank_causes.py DIR --record   # record each cause ten times (10 minutes)
    python benchmarks/rank_causes.py DIR             # judge the recordings
    python benchmarks/rank_causes.py DIR --record --first 11 --runs 5    # other lots

Recording needs PyTorch and Linux, and continues where it was stopped. The slow link is the loopback
device of a network namespace, limited by `tc`; where that is not allowed, the cause is left out.
Seeds from 1 are the evidence; seed 0 is for looking at while the rules are written. Prints
Markdown.
"""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from processes import ROOT
from tb_perfadvisor import analyze
from tb_perfadvisor.engine.config import Config
from tb_perfadvisor.report.report import Report
from tb_perfadvisor.signals import Options

_PROGRAM = ROOT / "benchmarks" / "recorded_ranks" / "program.py"
_LIMITED = (
    "ip link set lo up && tc qdisc add dev lo root tbf rate 2gbit burst 256kb limit 100mb && exec "
)
_LINK_BYTES_PER_S = 1e9
"""What the analysis is told of the slow link: four ranks share a quarter of it."""
_TIME_LIMIT_S = 300


@dataclass(frozen=True, slots=True)
class Cause:
    """What is induced, and which rules name it; none for programs that are balanced."""

    id: str
    what: str
    rules: tuple[str, ...] = ()
    has_odd_rank: bool = False


CAUSES = (
    Cause("late-on-the-host", "a rank does something else before each step", ("straggler",), True),
    Cause("larger-batch", "a rank has about twice the samples", ("straggler",), True),
    Cause(
        "uneven-experts",
        "an expert has about twice the tokens",
        ("expert-imbalance", "straggler"),
        True,
    ),
    Cause("slow-link", "a throttled link", ("slow-link", "long-all-reduce")),
    Cause("small-messages", "every gradient reduced by itself", ("small-messages",)),
    Cause("pipeline-bubble", "four stages, two to four micro-batches", ("pipeline-bubble",)),
    Cause("unsharded-optimizer", "a long update on every rank", ("replicated-optimizer",)),
    Cause("balanced", "balanced: DistributedDataParallel"),
    Cause("sharded", "balanced: `fully_shard`"),
    Cause("even-experts", "balanced: experts"),
)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was said of one recording."""

    cause: Cause
    name: str
    first: str | None
    has_straggler: bool
    is_rank_right: bool | None
    """None where no rank is odd."""

    @property
    def is_right(self) -> bool:
        """Whether the cause comes first; of a balanced program, whether no rank is late."""
        return self.first in self.cause.rules if self.cause.rules else not self.has_straggler


def record(folder: Path, seeds: Sequence[int]) -> None:
    """Record what is missing of every cause."""
    for cause in CAUSES:
        missing = []
        for seed in seeds:
            made = folder / f"{cause.id}-{seed:02}"
            if len(list(made.glob("*.gz"))) < 4:
                shutil.rmtree(made, ignore_errors=True)
                missing.append(str(seed))
        if not missing:
            continue
        command = [sys.executable, str(_PROGRAM), str(folder), cause.id, *missing]
        if cause.id == "slow-link":
            command = ["unshare", "-Urn", "sh", "-c", _LIMITED + shlex.join(command)]
        print(f"recording {cause.id} {' '.join(missing)}", file=sys.stderr)
        done = subprocess.run(
            command, timeout=_TIME_LIMIT_S, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        if done.returncode:
            print(done.stderr.decode(errors="replace")[-2_000:], file=sys.stderr)


def judge(folder: Path) -> Iterator[Verdict]:
    """What the analysis says of each recording."""
    for cause in CAUSES:
        for made in sorted(folder.glob(f"{cause.id}-[0-9][0-9]")):
            link = _LINK_BYTES_PER_S if cause.id == "slow-link" else None
            config = Config(options=Options(link_bandwidth_bytes_per_s=link))
            yield _verdict(cause, made, analyze(made, config))


def _verdict(cause: Cause, made: Path, report: Report) -> Verdict:
    odd = json.loads((made / "truth.json").read_text())["odd_rank"]
    named = [finding for finding in report.findings if finding.rule_id in cause.rules]
    return Verdict(
        cause,
        made.name,
        report.first.rule_id if report.first is not None else None,
        any(finding.rule_id == "straggler" for finding in report.findings),
        bool(named) and named[0].scope.ranks == [odd] if cause.has_odd_rank else None,
    )


def page(verdicts: Sequence[Verdict]) -> Iterator[str]:
    """The verdicts as Markdown."""
    yield "| induced | runs | cause first | rank right | late rank named in error |"
    yield "|---|---|---|---|---|"
    for cause in CAUSES:
        rows = [verdict for verdict in verdicts if verdict.cause is cause]
        if not rows:
            continue
        ranks = [row.is_rank_right for row in rows if row.is_rank_right is not None]
        first = f"{sum(row.is_right for row in rows)} of {len(rows)}" if cause.rules else "–"
        right = f"{sum(ranks)} of {len(ranks)}" if ranks else "–"
        wrong = "–" if cause.has_odd_rank else str(sum(row.has_straggler for row in rows))
        yield f"| {cause.what} | {len(rows)} | {first} | {right} | {wrong} |"
    induced = [row for row in verdicts if row.cause.rules]
    ranks = [row.is_rank_right for row in verdicts if row.is_rank_right is not None]
    if induced and ranks:
        first_share = sum(row.is_right for row in induced) / len(induced)
        wrong_count = sum(row.has_straggler for row in verdicts if not row.cause.has_odd_rank)
        yield (
            f"| **all** | {len(verdicts)} | {first_share:.0%} | {sum(ranks) / len(ranks):.0%} |"
            f" {wrong_count} |"
        )
    for row in verdicts:
        if not row.is_right or row.is_rank_right is False:
            yield f"\n- {row.name}: first is {row.first}"


def main() -> None:
    """Record or judge what the command line asks for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--record", action="store_true", help="record what is missing first")
    parser.add_argument("--runs", type=int, default=10, help="how often each is recorded")
    parser.add_argument("--first", type=int, default=1, help="the seed of the first lot")
    given = parser.parse_args()
    if given.record:
        record(given.folder, range(given.first, given.first + given.runs))
    else:
        print("\n".join(page(list(judge(given.folder)))))


if __name__ == "__main__":
    main()
