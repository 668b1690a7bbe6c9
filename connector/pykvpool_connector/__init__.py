"""Engines on the pool: vLLM's KV connectors, and `mooncake.store`'s API. Stands above `pykvpool`, which never imports it."""
