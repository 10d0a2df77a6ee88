"""Checkpoints with logical names and full shapes. They are written atomically and can be restored on any cluster."""
