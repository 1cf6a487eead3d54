"""What the edge appends: frames for messages and ends, one log, one flush for many. From outside `store.edge`: the limits of
`encode`.
"""
