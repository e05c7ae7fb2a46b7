"""Towards SGLang: the requests, the HTTP client, and the checks on what comes back."""
