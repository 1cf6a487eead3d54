"""Verify: every file of a store against every other. From outside: `store.verify`."""
