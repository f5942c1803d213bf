"""The typed configuration: schema, rules, loading, and the shipped JSON files.

Nothing in this package imports TensorFlow or NumPy, so a config error is answered at once.
"""
