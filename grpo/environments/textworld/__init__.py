"""Text adventures that TextWorld generates: environment, view of the world, and generator of scenarios."""
