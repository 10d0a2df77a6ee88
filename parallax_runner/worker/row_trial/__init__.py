"""A row trial: which rows the steps of a model touch, and what a step takes on one device."""
