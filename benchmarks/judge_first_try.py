"""Advice on other people's GPU profiles, judged against truths that were written down before.

python benchmarks/judge_first_try.py collect CLONES DIR   # copy the profiles out of git clones
python benchmarks/judge_first_try.py truth DIR            # measure them, without the advisor
    python benchmarks/judge_first_try.py judge DIR            # analyze and judge them, once

`judge` keeps its reports in DIR/reports and judges these from then on. Nothing may be tuned on the
profiles, nor on the test half of the histories: for another try, freeze another list.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from first_try.collect import collect
from first_try.judge import judge_histories, judge_profiles
from first_try.page import later_section, section
from first_try.recipes import BATCHES, folders
from first_try.truth import measure

_EARLIER = {"second": [(37, 45)], "third": [(37, 45), (29, 31)]}
"""Of each batch before one: profiles that were right when it was judged, and all of them."""


def main() -> None:
    """Run one of the commands."""
    given = _arguments()
    if given.command == "collect":
        problems = collect(given.clones, given.directory)
        print("\n".join(problems) or "all files are there")
        sys.exit(bool(problems))
    if given.command == "truth":
        for profile, folder in folders(given.directory):
            print(json.dumps({"name": profile.name, "files": measure(folder)}))
    if given.command == "judge":
        _judge(given)


def _judge(given: argparse.Namespace) -> None:
    if given.batch in _EARLIER:
        verdicts = judge_profiles(given.directory, given.batch)
        lines = list(later_section(verdicts, _EARLIER[given.batch], given.judged))
    else:
        verdicts = [] if given.tuning else judge_profiles(given.directory)
        test = [] if given.tuning else judge_histories(given.directory, "test")
        tuning = judge_histories(given.directory, "tuning")
        lines = list(section(verdicts, test, tuning, given.judged))
    print("\n".join(lines))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    collecting = commands.add_parser("collect", help="copy the profiles out of git clones")
    collecting.add_argument("clones", type=Path, help="folder of git repositories, `owner+name`")
    collecting.add_argument("directory", type=Path, help="where to write the profiles")
    measuring = commands.add_parser("truth", help="measure the profiles from their raw events")
    measuring.add_argument("directory", type=Path, help="where the profiles lie")
    judging = commands.add_parser("judge", help="compare the advice with the truths")
    judging.add_argument("directory", type=Path, help="where the profiles lie")
    judging.add_argument(
        "--judged", default="today", metavar="TEXT", help="when, and which version"
    )
    judging.add_argument("--batch", default="first", choices=tuple(BATCHES), help="of profiles")
    judging.add_argument("--tuning", action="store_true", help="only the tuning half of histories")
    return parser.parse_args()


if __name__ == "__main__":
    main()
