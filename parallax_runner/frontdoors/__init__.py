"""How users of other systems start the processes of a run one by one: docs/design/0053."""
