"""The entry point of TensorBoard. Importing it must succeed whatever is missing or broken."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tensorboard.plugins import base_plugin

if TYPE_CHECKING:
    from tb_perfadvisor.plugin.plugin import PerfAdvisorPlugin


class PerfAdvisorLoader(base_plugin.TBLoader):  # type: ignore[misc] # TensorBoard has no types
    """Loads the plugin, or logs why it cannot."""

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
                "The Perf Advisor tab is off: %s: %s. Reinstall it with "
                "`pip install --force-reinstall tb_perfadvisor`.",
                type(error).__name__,
                error,
            )
            logger.debug("Loading Perf Advisor failed", exc_info=True)
            return None
        return plugin
