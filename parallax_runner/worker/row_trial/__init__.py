"""A row trial measures which rows the steps of a model touch, and how long a step takes on one device."""
