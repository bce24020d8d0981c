"""Memory and time of a training, estimated before it starts."""
