"""SGLang's own server, made to run without a GPU too: `python -m sat_slime.embedded.sglang_server.launch`."""
