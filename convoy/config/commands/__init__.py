"""Command lines of the reference applications, taken apart: `reading.py` is the door."""
