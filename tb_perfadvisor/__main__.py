"""`python -m tb_perfadvisor` is the `perfadvisor` command."""

import gc
import os
import sys
from typing import NoReturn


def main() -> NoReturn:
    """Run the command. What reads a file starts before the command itself is imported."""
    # What imports make, stays: looking for garbage in it is a tenth of a small analysis.
    gc.set_threshold(200_000)
    from tb_perfadvisor.execution import ahead

    if sys.argv[1:2] == ["analyze"]:
        ahead.stand_by()
    try:
        from tb_perfadvisor.cli import main as run

        run()
    except SystemExit as end:
        _end(end)
    finally:
        ahead.dismiss()


def _end(end: SystemExit) -> NoReturn:
    """End at once: to take down all that was imported and read takes as long as `--help`."""
    import atexit
    import threading

    if threading.active_count() > 1 or not isinstance(end.code, int):
        raise end  # in the usual way, which waits for threads and says what is no number
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(end.code)


if __name__ == "__main__":
    main()
