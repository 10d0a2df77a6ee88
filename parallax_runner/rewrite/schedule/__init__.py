"""Schedules exchanges: determines when they start, and which gradients share an exchange."""
