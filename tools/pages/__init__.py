"""The files that tools/write_docs.py writes, one module for each kind."""
