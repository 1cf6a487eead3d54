"""What there is to read of a topic (settled queues, the unsettled tail behind them, places by time), and waiting for more. From
outside: `tail`, `settled_queues`, `start_positions`, `news`, `poll_waiters`.
"""
