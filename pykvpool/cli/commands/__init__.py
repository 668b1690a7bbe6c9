"""The commands that run, use and show a pool. Each module is imported when one of its commands is called."""
