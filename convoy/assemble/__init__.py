"""The one place that sees all rooms and puts their pieces together."""
