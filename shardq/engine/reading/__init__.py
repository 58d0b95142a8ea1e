"""Reading: which lanes a member reads, from where, and which rows it takes into memory."""
