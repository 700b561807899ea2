"""The machine: its GPUs, its host, its compilers."""
