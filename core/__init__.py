"""The foundation of all other packages; imports none of them."""
