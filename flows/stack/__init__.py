"""The servers and workers of one machine: started, watched and ended."""
