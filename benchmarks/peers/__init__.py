"""The peers of scripts/bench: the same models on other systems, written as users of those systems would write them."""
