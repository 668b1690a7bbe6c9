"""The master's shell: it feeds a deterministic core with what happens and carries out what it decides. Read `decider`
(what a core is), `stepper`, `connection`, `server`."""
