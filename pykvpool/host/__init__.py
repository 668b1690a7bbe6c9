"""The pool as an engine's process uses it: enqueue a job, poll for its end; nothing here makes the caller wait.

It sits above client, node and master because a port to the pool may hold any of them.
"""
