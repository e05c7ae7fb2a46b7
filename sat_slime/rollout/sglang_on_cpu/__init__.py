"""SGLang's own server on a CPU: what stands in for packages that are absent, and the patches of what asks for CUDA.
`absent` needs no torch, so that a process may call it before it imports anything else."""
