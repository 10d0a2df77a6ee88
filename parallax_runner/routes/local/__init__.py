"""The local route: gradients stay in their process."""
