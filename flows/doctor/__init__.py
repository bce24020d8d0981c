"""Whether this machine can do the work: what is here, what is missing, and how to mend it."""
