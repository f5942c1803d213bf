"""Raw TensorFlow inside a model: each kernel states which dimensions may be split."""
