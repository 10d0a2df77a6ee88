"""Runs steps in a session: joins the cluster, feeds batches, measures, and reports to the driver."""
