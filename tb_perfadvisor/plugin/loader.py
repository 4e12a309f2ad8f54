"""The entry point of TensorBoard. Importing it must succeed whatever is missing or broken."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from tensorboard.plugins import base_plugin

if TYPE_CHECKING:
    from tb_perfadvisor.plugin.plugin import PerfAdvisorPlugin


class PerfAdvisorLoader(base_plugin.TBLoader):  # type: ignore[misc] # TensorBoard has no types
    """Loads the plugin, or logs why it cannot."""

    def define_flags(self, parser: argparse.ArgumentParser) -> None:
        """Add the flags that show the user's code, and those for shared servers."""
        group = parser.add_argument_group("Perf Advisor")
        group.add_argument(
            "--perfadvisor_repo",
            metavar="DIR",
            default="",
            help="directory of the program's code, to show the lines that findings are about",
        )
        group.add_argument(
            "--perfadvisor_source_link",
            metavar="URL",
            default="",
            help="links to these lines: vscode, or a URL with {path} and {line}",
        )
        group.add_argument(
            "--perfadvisor_stay_in_logdir",
            action="store_true",
            help="refuse links that lead out of the log directory: for servers whose log "
            "directory others may write to",
        )
        group.add_argument(
            "--perfadvisor_write_hosts",
            metavar="HOSTS",
            default="",
            help="hosts, separated by commas and named as in the browser's address bar, at which "
            "everyone may write notes on findings and stop analyses; by default, only at localhost",
        )

    def load(self, context: base_plugin.TBContext) -> PerfAdvisorPlugin | None:
        """Load the plugin; log a warning and return None if an import is broken."""
        try:
            from tb_perfadvisor.plugin.plugin import PerfAdvisorPlugin

            plugin = PerfAdvisorPlugin(context)
            plugin.start()
        except Exception as error:  # an ImportError, or whatever a broken package raises
            from tensorboard.util import tb_logging

            logger = tb_logging.get_logger()
            logger.warning(
                "The Perf Advisor tab is off: %s: %s. Reinstall tb_perfadvisor and what it needs.",
                type(error).__name__,
                error,
            )
            logger.debug("Loading Perf Advisor failed", exc_info=True)
            return None
        return plugin
