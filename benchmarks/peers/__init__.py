"""The same models on other systems, written plainly, as their own users would: the peers of scripts/bench."""
