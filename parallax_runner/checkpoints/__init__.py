"""Checkpoints that store variables under logical names and in full shapes. They are written atomically and can be
restored on any cluster."""
