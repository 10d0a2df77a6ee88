"""One folder for each route: what planning must know about it (`planning.py`, without TensorFlow), and its passes and
placement (`rewriting.py` and the other modules)."""
