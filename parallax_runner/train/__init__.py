"""Runs steps in a session: joins the cluster, feeds batches, measures throughput, and reports to the driver."""
