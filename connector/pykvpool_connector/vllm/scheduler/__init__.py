"""The scheduler's side of the vLLM connector: what to look up, load and save, decided without vLLM, torch or I/O.

`side.py` is the whole of it; the facade (`connector.py` above) hands vLLM's hooks to it. Everything here runs on the
engine's thread between two steps, so nothing waits: questions go into a port and answers are polled for.
"""
