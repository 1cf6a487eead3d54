"""Looks at a store without lock or change. From outside: `dump`, `stats`, `verify.store`."""
