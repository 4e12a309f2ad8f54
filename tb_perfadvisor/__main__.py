"""`python -m tb_perfadvisor` is the `perfadvisor` command."""

import sys
from typing import NoReturn


def main() -> NoReturn:
    """Run the command. What reads a file starts before the command itself is imported."""
    if sys.argv[1:2] == ["analyze"]:
        from tb_perfadvisor.engine.ahead import stand_by

        stand_by()
    from tb_perfadvisor.cli import main as run

    run()


if __name__ == "__main__":
    main()
