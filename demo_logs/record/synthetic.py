"""Writes the synthetic demo profiles: `python demo_logs/record/synthetic.py [--output DIR]`.

Unlike the other scripts, it records nothing: its output is the same every time.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from tb_perfadvisor.testing.synthetic import write_synthetic


def main() -> None:
    """Writes the profiles and their labels."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path(__file__).resolve().parent.parent)
    write_synthetic(parser.parse_args().output)


if __name__ == "__main__":
    main()
