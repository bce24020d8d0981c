"""Triage: environment and scenario generator."""
