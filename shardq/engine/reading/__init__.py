"""Reading: which lanes a member reads, from where on, and what of it is taken into memory."""
