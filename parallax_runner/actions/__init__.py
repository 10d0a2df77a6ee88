"""What a command does: train, plan, verify, search, simulate or sync. Each module is one action."""
