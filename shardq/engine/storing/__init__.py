"""Storing: outcomes of deliveries, on their way to the store in batches."""
