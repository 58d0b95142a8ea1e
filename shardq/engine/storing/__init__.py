"""Storing: what deliveries came to, on its way to the store in bulk."""
