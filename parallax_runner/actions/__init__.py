"""What a command does (train, evaluate, export, plan, verify, search, simulate or sync), and the last lines that it
prints. Each module is one action."""
