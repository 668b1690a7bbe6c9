"""The `pykvpool` command. Start with `main`; each command lives in a module that is imported only when it is called."""
