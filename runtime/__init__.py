"""What every server process shares: settings, supervisor, child processes, metrics, tracing, clocks; and
the commands that come with the server.
"""
