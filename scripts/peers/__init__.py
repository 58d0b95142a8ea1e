"""Tests of other servers, run against shardq: `scripts/sqs_peers`."""
