"""What the data is: records, their storages, and datasets over them."""
