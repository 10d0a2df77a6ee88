"""Schedules exchanges: when they start, and which gradients share one."""
