"""Commands of ``delayservice``, one module for each larger command."""
