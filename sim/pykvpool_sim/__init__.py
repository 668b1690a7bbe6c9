"""The cluster in one process: the pool's own code on virtual time, with faults. `pykvpool` never imports it.

Read in this order: `world` (what a run is made of), `host`, `loop`, `choosers`; then what can be done to them:
`network` and `pipes`, `platter` and `disk`, `faults` and `plan`. `log` shows how to live on such a disk.
docs/simulation.md tells the theory.
"""
