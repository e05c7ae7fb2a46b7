"""The codec of routed experts: SGLang sends int32 in base64, and responses keep the smallest unsigned type."""

from __future__ import annotations

import base64
import binascii

import numpy as np

WIRE_DTYPE = np.dtype("<i4")


def storage_dtype(experts: int) -> np.dtype:
    """Return the smallest unsigned type that holds expert indices 0 .. experts - 1."""
    return np.min_scalar_type(max(experts - 1, 0))


def encode(routed_experts: np.ndarray) -> str:
    """Return (rows, layers, top-k) integers as base64 of little-endian int32, as SGLang sends them."""
    return base64.b64encode(np.ascontiguousarray(routed_experts, dtype=WIRE_DTYPE).tobytes()).decode("ascii")


def decode(encoded: str, rows: int, layers: int, top_k: int) -> np.ndarray:
    """base64 of little-endian int32 -> (rows, layers, top-k) int32, read-only.

    Raises ValueError when it is not base64 or not of that size. Ranges are left to the caller.
    """
    try:
        raw = base64.b64decode(encoded, validate=True)
    except (binascii.Error, TypeError, ValueError) as error:
        raise ValueError(f"routed experts are not base64: {error}") from error
    expected = rows * layers * top_k * WIRE_DTYPE.itemsize
    if len(raw) != expected:
        raise ValueError(
            f"routed experts have {len(raw)} bytes; {rows} tokens x {layers} layers x top-{top_k} have {expected}"
        )
    return np.frombuffer(raw, WIRE_DTYPE).reshape(rows, layers, top_k)
