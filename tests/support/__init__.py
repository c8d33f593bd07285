"""Helpers shared by several tests, imported as `support.…`; tests/ is on the path."""
