"""The pool as seen from outside: health, metrics, state and a page for people over HTTP, and the generated reference.

Read `source` (what a face shows), `app` (the routes), `serve` (the server), `timed` (how long a master's steps take).
Nothing is imported here, so that a process without an HTTP face pays nothing for it: take ``build_app`` from
`pykvpool.observe.app` and ``serve_http`` from `pykvpool.observe.serve`.
"""
