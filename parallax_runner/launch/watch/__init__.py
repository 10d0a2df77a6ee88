"""Notices processes that live and do nothing, and tells where they stand."""
