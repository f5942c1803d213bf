"""Text to tokens to records: readers, tokenizers, packing and the record files."""
