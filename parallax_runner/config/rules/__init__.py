"""The rules that refuse a configuration: one module for each group of keys or idea. config/validate.py lists them."""
