"""Order desk: environment, scenario generator and demonstration policy."""
