"""``python -m delayservice.dev up``: the development commands without the rest of the CLI."""

from delayservice.dev.commands import app

if __name__ == "__main__":
    app()
