"""Where things lie in the folder of a run, for rooms that do not know each other."""

FINE_TUNE = "fine-tune"  # the second phase: a run folder itself
