"""Transform a whole batch on its device."""
