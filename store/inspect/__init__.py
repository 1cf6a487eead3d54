"""Looks at a store without lock or change: dump, stats, verify."""
