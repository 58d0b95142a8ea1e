"""Jobs on many messages at once: each is a pure plan on DataFrames, and its run."""
