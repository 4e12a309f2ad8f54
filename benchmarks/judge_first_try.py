"""Advice on other people's GPU profiles, judged against truths that were written down before.

python benchmarks/judge_first_try.py collect CLONES DIR     # copy the profiles out of git clones
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from first_try.collect import collect


def main() -> None:
    """Run one of the commands."""
    given = _arguments()
    if given.command == "collect":
        problems = collect(given.clones, given.directory)
        print("\n".join(problems) or "all files are there")
        sys.exit(bool(problems))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    collecting = commands.add_parser("collect", help="copy the profiles out of git clones")
    collecting.add_argument("clones", type=Path, help="folder of git repositories, `owner+name`")
    collecting.add_argument("directory", type=Path, help="where to write the profiles")
    return parser.parse_args()


if __name__ == "__main__":
    main()
