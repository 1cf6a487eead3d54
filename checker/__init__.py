"""The rules: what becomes of a half, decided by pure functions of (rows, ops, policy, live groups, now).

    policy.py      the operator's settings in seconds, and a message's own immunity
    decisions.py   pending rows → Wait, Hold, Check or a discard proposal (docs/cases.md), vectorised
    matcher.py     ops in log order → new state words and what each op did: Release, Rollback, Discard, Resume ...
    reference.py   both again, one row and one op at a time, to be read beside docs/cases.md; tests hold the two equal

Nothing here reads a clock, a disk or a log; time is an argument. Of the rest of the project only
`store.arrays`, `store.records` and `store.transitions` are imported. From outside: `policy`, `decisions`, `matcher`.
"""
