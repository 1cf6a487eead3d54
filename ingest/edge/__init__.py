"""What the embedded edge does, whatever the transport: halves, ends, ids, quotas. From outside:
`embedded`.
"""
