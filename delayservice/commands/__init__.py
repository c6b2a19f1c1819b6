"""Implementation of the command line, one module for each larger command."""
