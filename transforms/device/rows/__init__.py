"""Draw numbers for the rows of a batch, and change the rows where they are."""
