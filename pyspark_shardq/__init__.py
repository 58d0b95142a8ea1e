"""Lets Spark find the data source `shardq` by itself: it looks into packages of such a name."""
