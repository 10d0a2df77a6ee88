"""Models for one device, independent of this project."""

from pkgutil import extend_path

# The modules of a user's own folder `models` without an `__init__.py` are added to the modules in this folder.
__path__ = extend_path(__path__, __name__)
