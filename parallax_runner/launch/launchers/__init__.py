"""The launchers. Each launcher is a module or a folder, which also has its rules and its checks."""
