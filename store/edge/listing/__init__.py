"""Lists of halves for operators: which are pending, discarded or settled, by group, topic, key, time and attempts. From
outside: `listing`, `summary` and `wanted`. Nothing here writes.

`listing.Listing` answers from two sources, in the order of half offsets:
    the index   halves in doubt (open or discarded) as columns in memory (`index.py`): a filter over a million of them is a
                few array operations. `advance` follows the log, `tidy` removes what has ended; both a piece at a time.
    the files   everything else (`half_files.py`): halves that the index has not reached yet, and settled ones.
How a half ended is never in the index; every listing looks it up. So a listing is exact however far behind the index is,
only slower. The index is volatile and is built from the files at every start.

`enough` bounds the work and is asked after every piece: a listing that stops early says where to go on.

Not thread-safe, except for reading names: one thread makes all calls.
"""
