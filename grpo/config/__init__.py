"""What a run is asked to do: frozen models, unknown keys refused."""
