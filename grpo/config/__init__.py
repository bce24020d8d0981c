"""Settings: frozen pydantic models that refuse unknown keys."""
