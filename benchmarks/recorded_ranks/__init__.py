"""Programs of several ranks over gloo, each with a known cause of lost time, or with none."""
