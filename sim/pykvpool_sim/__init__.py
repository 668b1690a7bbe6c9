"""The cluster in one process: the pool's own code on virtual time, with faults. `pykvpool` never imports it."""
