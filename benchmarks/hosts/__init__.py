"""`scripts/bench --hosts N`: measures modes on several hosts on one machine, with links of a given speed."""
