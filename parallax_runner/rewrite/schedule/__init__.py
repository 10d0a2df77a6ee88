"""When exchanges leave, and which gradients share one."""
