"""SGLang's own server as a process of a run: `python -m sat_slime.embedded.sglang_server.launch`."""

SCRATCH = "SAT_SLIME_SCRATCH"
"""Environment variable: the server's scratch folder, which goes with it."""
SOCKET = "http"
"""File in that folder on which the server listens."""
