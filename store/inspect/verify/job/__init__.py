"""Verify, the job's side: what is derived against the redo log. From outside: `side`."""
