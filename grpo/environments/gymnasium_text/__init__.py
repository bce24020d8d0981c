"""Gymnasium's environments in words: environment, view of minigrid's worlds, levels of BabyAI and their bot."""
