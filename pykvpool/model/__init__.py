"""The nouns of the pool, and the messages that speak of them.

Read in this order: `ids`, `keys`, `objects`; then what sessions ask (`commands`) and get (`replies`); what happens to
the master (`events`), what it decides (`facts`) and what it tells others to do (`instructions`). Everything here is an
immutable value. How a value becomes bytes is `pykvpool.protocol`'s business.
"""
