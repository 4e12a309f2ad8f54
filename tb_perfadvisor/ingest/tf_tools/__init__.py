"""Results of TensorFlow's profiler before it recorded events: one file per tool and host."""

from tb_perfadvisor.ingest.tf_tools.naming import ALL_HOSTS, ToolFile, tool_file

__all__ = ["ALL_HOSTS", "ToolFile", "tool_file"]
