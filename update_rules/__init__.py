"""The optimizers' formulas: from one variable's gradient to what is subtracted from it."""
