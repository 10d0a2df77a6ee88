"""The cost model that all routes share: measured constants, touched rows, server load, and the critical path of a step.
The formula for one route's collective or server is in planning/routes."""
