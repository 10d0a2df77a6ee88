"""Shows that the tests find faults: breaks one line of the package, and runs the tests that execute this line."""
