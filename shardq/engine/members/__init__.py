"""Members: what the parts of one member share, and what members share with each other."""
