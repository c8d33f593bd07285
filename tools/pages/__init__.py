"""The files that tools/write_docs.py generates, one module for each of them."""
