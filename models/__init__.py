"""Models as plain TensorFlow graph builders; they know nothing of distribution."""

from pkgutil import extend_path

# A folder `models` of the user's own, without an `__init__.py`, adds its modules to these.
__path__ = extend_path(__path__, __name__)
