"""Escrow and Apache RocketMQ on the same work, in alternation: `make bench-rocketmq`. Parts:

pom.xml, Client.java   RocketMQ's jars, and its official client as a program that takes commands
client.py              the same program with Escrow's SDK
systems.py             both systems as processes: start, kill, rest, and what they use
processes.py           CPU, memory and written bytes of processes, and how the client programs are spoken to
workloads.py           what is measured, (a) to (i)
results.py             figures, goals, results.json
page.py, plots.py      docs/benchmarks.md
"""
