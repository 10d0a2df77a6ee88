"""Checkpoints with logical names and full shapes. These checkpoints are written atomically and can be restored on any
cluster."""
