"""Lines for TensorBoard's log, which is usually a terminal."""

from __future__ import annotations

from tensorboard.util import tb_logging

from tb_perfadvisor.errors import UnexpectedError, log_bug
from tb_perfadvisor.plain_text import plain, plain_lines


def warn(message: str) -> None:
    """Log a warning."""
    tb_logging.get_logger().warning("Perf Advisor: %s", plain(message))


def explain(message: str) -> None:
    """Log details, which TensorBoard shows with `--verbosity -1`."""
    tb_logging.get_logger().debug("Perf Advisor: %s", plain_lines(message))


def report_bug(bug: UnexpectedError) -> None:
    """Write the traceback of a bug to the file for it, and say where that is."""
    from tb_perfadvisor.error_log import write_error_log

    log = write_error_log()
    log_bug(bug)
    warn(f"{bug} The traceback is in {log.path}." if log.path else str(bug))
