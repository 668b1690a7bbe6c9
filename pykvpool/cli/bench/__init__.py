"""`pykvpool bench`: the pool beside the bare machine, in one run.

Absolute figures wander with the machine and its neighbours; the ratio to what the same machine moved in the same minute
does not. So every round takes the raw figures (`raw`), then the cases (`cases`), and reports medians of rates and of
ratios. `worker` is the process that measures, `command` starts it with a master and a node and prints the tables.
"""
