"""Schedules exchanges: when exchanges start, and which gradients share an exchange."""
