"""Why a request to an SGLang server came to nothing."""

from __future__ import annotations

import httpx


def in_words(error: Exception) -> str:
    """Return why an HTTP request came to nothing, in words."""
    if isinstance(error, httpx.ConnectError):
        return f"no server answers there ({error})"
    if isinstance(error, httpx.TimeoutException):
        return "no answer in time"
    if isinstance(error, (httpx.UnsupportedProtocol, httpx.InvalidURL)):
        return "this is no address of a server, such as http://127.0.0.1:30000"
    if isinstance(error, httpx.HTTPStatusError):
        return f"answered {error.response.status_code}: {error.response.text[:300]}"
    if isinstance(error, httpx.TransportError):
        return f"the connection broke ({str(error) or type(error).__name__})"
    return f"the answer is no JSON ({error})"
