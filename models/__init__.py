"""Models for one device, independent of this project."""

from pkgutil import extend_path

# Users can have their own folder `models` without an `__init__.py`. Its modules are added to those in this folder.
__path__ = extend_path(__path__, __name__)
