"""Predicts steps of clusters that are not there, from one measurement and the cost model; it starts nothing."""
