"""Workers of process pools: forked processes of stages, and runs that a worker has lost."""
