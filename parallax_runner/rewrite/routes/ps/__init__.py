"""The route ps: variables in shards on servers."""
