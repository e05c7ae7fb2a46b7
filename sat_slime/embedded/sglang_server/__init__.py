"""SGLang's own server as a process of a run: `python -m sat_slime.embedded.sglang_server.launch`."""
