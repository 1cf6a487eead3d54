"""What there is to read of a topic: settled queues, the unsettled tail behind them, places by time. From outside: `tail`,
`settled_queues`, `start_positions`.
"""
