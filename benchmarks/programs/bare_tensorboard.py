"""TensorBoard without this package's plugin, with the command line of `tensorboard`."""

import sys

from tensorboard import default, program

plugins = [
    plugin
    for plugin in default.get_plugins()
    if not plugin.__module__.startswith("tb_perfadvisor.")
]
tensorboard = program.TensorBoard(plugins)
tensorboard.configure(sys.argv)
sys.exit(tensorboard.main())
