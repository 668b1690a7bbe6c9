"""The pool inside vLLM: `PyKVPoolStoreConnector`, for vLLM 0.32."""
