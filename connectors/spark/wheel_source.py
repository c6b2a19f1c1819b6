"""Old name of ``reconcile.wheel_source``, kept for one version."""

from connectors.spark.reconcile.wheel_source import *  # noqa: F403  # whatever it has
