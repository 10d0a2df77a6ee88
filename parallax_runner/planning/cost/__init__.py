"""The cost model: constants, touched rows, bytes, seconds, and the critical path of a step."""
