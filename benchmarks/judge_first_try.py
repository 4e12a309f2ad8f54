"""Advice on other people's GPU profiles, judged against truths that were written down before.

python benchmarks/judge_first_try.py collect CLONES DIR   # copy the profiles out of git clones
python benchmarks/judge_first_try.py truth DIR            # measure them, without the advisor
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from first_try.collect import collect
from first_try.recipes import folders
from first_try.truth import measure


def main() -> None:
    """Run one of the commands."""
    given = _arguments()
    if given.command == "collect":
        problems = collect(given.clones, given.directory)
        print("\n".join(problems) or "all files are there")
        sys.exit(bool(problems))
    for profile, folder in folders(given.directory):
        print(json.dumps({"name": profile.name, "files": measure(folder)}))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    collecting = commands.add_parser("collect", help="copy the profiles out of git clones")
    collecting.add_argument("clones", type=Path, help="folder of git repositories, `owner+name`")
    collecting.add_argument("directory", type=Path, help="where to write the profiles")
    measuring = commands.add_parser("truth", help="measure the profiles from their raw events")
    measuring.add_argument("directory", type=Path, help="where the profiles lie")
    return parser.parse_args()


if __name__ == "__main__":
    main()
