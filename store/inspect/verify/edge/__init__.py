"""Verify, the edge's side: a module for each thing that is verified. From outside: `side`."""
