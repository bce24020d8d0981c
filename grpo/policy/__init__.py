"""The models that speak, behind one protocol."""
