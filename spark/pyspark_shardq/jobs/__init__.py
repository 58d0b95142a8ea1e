"""What is done with many messages at once: each job is a pure plan on DataFrames, and its run."""
