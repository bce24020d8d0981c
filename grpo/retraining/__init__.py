"""Retraining: triggers, curation of conversations, and the training mixture."""
