"""What several tests share. Imported as `support.…`; the folder tests/ is on the path."""
