"""The `perfadvisor` command."""

from __future__ import annotations

import atexit
import gc
import os
import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import NoReturn

import click

from tb_perfadvisor.cli.help import Group
from tb_perfadvisor.cli.terminal import EXIT_USAGE, fail, note, prepare_streams
from tb_perfadvisor.error_log import write_error_log
from tb_perfadvisor.errors import PerfAdvisorError, contained, log_bug
from tb_perfadvisor.execution.execution import collect_rarely
from tb_perfadvisor.version import VERSION

_NAMES = (
    *("analyze", "compare", "history", "training", "run", "record-now", "rules", "explain"),
    *("suggest", "try", "ledger", "doctor", "publish", "tpu-shapes", "anonymize", "mcp", "demo"),
)
_MODULES = {name: name.replace("-", "_") for name in _NAMES}
_MODULES |= {"explain": "rules", "try": "try_changes"}


class _Commands(Mapping[str, click.Command]):
    """The commands by name, each imported when it is asked for."""

    def __getitem__(self, name: str) -> click.Command:
        found = vars(import_module(f"{__name__}.{_MODULES[name]}")).values()
        return next(each for each in found if isinstance(each, click.Command) and each.name == name)

    def __iter__(self) -> Iterator[str]:
        return iter(_MODULES)

    def __len__(self) -> int:
        return len(_MODULES)


app = Group(
    "perfadvisor",
    help="Reads PyTorch, TensorFlow and JAX profiles and says what to change, ranked by the time "
    "each change would save.",
    no_args_is_help=True,
    commands=_Commands(),  # type: ignore[arg-type]  # nothing changes them
    epilog="Start with: perfadvisor analyze runs/\n\n"
    "Exit status: 2 on an error, 1 if --fail-on or --fail-on-regression says so, 3 if "
    "--fail-on-regression cannot tell, else 0.",
)
app = click.version_option(VERSION, "--version", message="perfadvisor %(version)s")(app)


def main() -> NoReturn:
    """Run the command; an error that a user can fix ends in one line and exit status 2."""
    # We do no linear algebra: OpenBLAS's idle threads would only burn processor time.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    collect_rarely()
    atexit.register(gc.freeze)  # at the end, Python would look through everything
    prepare_streams()
    log = write_error_log()
    try:
        status = app(standalone_mode=False)
        sys.exit(status if isinstance(status, int) else 0)
    except click.exceptions.NoArgsIsHelpError as error:
        sys.stdout.write(error.format_message())
        sys.exit(EXIT_USAGE)
    except click.ClickException as error:
        fail(error.format_message())
    except PerfAdvisorError as error:
        fail(str(error))
    except MemoryError:
        fail("there is not enough memory for this. Try --workers 1, or record fewer steps.")
    except (click.Abort, KeyboardInterrupt):
        sys.exit(130)
    except Exception as error:
        shown = contained(error, what="the command failed")
        log_bug(shown)
        fail(str(shown))
    finally:
        if log.path is not None:
            note(f"the traceback of a bug is in {log.path}.")
