"""Bytes: disk access, segments, journals, mapped pages, wake-ups. Knows no record. From outside: `pages`, `wakeup`,
`descriptors`, and of `disk` what small files of other rooms need; the rest is for the shelves above.
"""
