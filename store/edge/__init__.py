"""The edge's side of the store: the only writer of logs, `ends`, dedup, names. From outside: `store`, `listing`,
`pending_counts`, `removal`; see also the first lines of the shelves `append`, `listing` and `recovery`.
"""
