"""The TensorBoard plugin. Nothing is imported here: TensorBoard must start whatever we lack."""
