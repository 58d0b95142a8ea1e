"""A server for those who do not write Python: an SQS endpoint and an HTTP API."""
