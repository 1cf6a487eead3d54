"""Bytes: disk access, segments, journals, mapped pages, wake-ups. Knows no record; imported by every shelf
above.
"""
