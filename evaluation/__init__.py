"""Scores of a trained model."""
