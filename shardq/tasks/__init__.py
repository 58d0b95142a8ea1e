"""Tasks: functions that are put as jobs, and run by workers."""
