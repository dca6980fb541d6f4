"""One reader per kind of file, each run in the child process: bytes in, pages and flags out."""
