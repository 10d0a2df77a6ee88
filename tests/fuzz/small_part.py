"""The models of the default tier: at least one of each group of kinds, and each front, on two ranks."""

SMALL = (
    17,  # an own optimizer without get_config
    50,  # a mean over a mask in a step
    67,  # a loop that writes
    75,  # gradients of copies
    76,  # a branch that writes
    96,  # an optimizer in a branch
    97,  # attention and Lion: noise
    118,  # gradients of looked-up rows in a graph
    122,  # add_loss of a sum
    172,  # gradients of looked-up rows in a step
    237,  # a loop in a layer that writes
    282,  # an own optimizer that decays later
)
