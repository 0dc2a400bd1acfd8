"""Find files and read them by range or as streams, with a limit on open files."""
