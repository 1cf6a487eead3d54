"""Benchmarks: ratios measured side by side in one run. Each ends with one line `NAME VALUE` for each figure."""
