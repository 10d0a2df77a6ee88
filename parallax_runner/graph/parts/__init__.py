"""A step that computes its gradients in several passes over parts of its batch (train.accumulate_steps)."""
