"""Reads and writes files: atomic replacement, caches, and text without passwords. Imports no other stage."""
