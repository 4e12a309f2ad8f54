"""`python -m tb_perfadvisor` is the `perfadvisor` command."""

import sys


def main() -> None:
    """Run the command. What reads a file starts before the command itself is imported."""
    from tb_perfadvisor.engine import ahead

    if sys.argv[1:2] == ["analyze"]:
        ahead.stand_by()
    try:
        from tb_perfadvisor.cli import main as run

        run()
    finally:
        ahead.dismiss()


if __name__ == "__main__":
    main()
