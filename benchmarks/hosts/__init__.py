"""`scripts/bench --hosts N`: several hosts on one machine, with links of a given speed between them."""
