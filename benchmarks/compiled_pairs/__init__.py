"""Programs that are compiled for TPUs, slow and fixed; no TPU is needed, and none of them runs."""
