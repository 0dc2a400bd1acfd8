"""Share training among processes: who they are, how they share a model, what each saves of it."""
