"""Weights of other programs: found, read, renamed, and made to fit one of our networks."""
