"""Engines on the pool: vLLM's KV connectors and `mooncake.store`'s API. Above `pykvpool`, which never imports it."""
