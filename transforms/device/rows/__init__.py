"""Draw numbers for the rows of a batch, and change the rows on their device."""
