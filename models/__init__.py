"""Models for one device, independent of this project."""

from pkgutil import extend_path

# A user's own folder `models`, without an `__init__.py`, adds its modules to these.
__path__ = extend_path(__path__, __name__)
