"""The images and the Compose file with real containers: ``make containers``."""
