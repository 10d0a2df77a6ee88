"""Random models, trained by the package and by untouched TensorFlow: `python -m tests.fuzz`
(docs/design/0061-random-models.md)."""
