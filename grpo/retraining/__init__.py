"""Whether to train again, and on what: reasons, new conversations and the gates they pass, the mixture."""
