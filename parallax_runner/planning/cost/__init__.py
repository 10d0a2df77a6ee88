"""The cost model that all routes share: measured constants, touched rows, server load, and the critical path of a step.
The formulas for the individual routes are in routes/*/planning.py."""
