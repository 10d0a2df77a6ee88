"""Runs steps in a session: joins the cluster, feeds, measures, and reports to the driver."""
