"""Text from a trained model: the one engine that generates."""
