"""What the embedded edge does, whatever the transport: halves, ends, names, quotas. From outside:
`embedded`.
"""
