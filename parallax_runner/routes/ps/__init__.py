"""The ps route: variables on servers. All ranks push gradients to the servers and read variables from them."""
