"""The same models on other systems, written plainly, as their own users would: what scripts/bench compares with."""
