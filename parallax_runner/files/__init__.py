"""Reads and replaces files, provides the cache folder, and hides passwords in text. Imports no other stage."""
