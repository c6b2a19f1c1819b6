"""Former name of the module ``common.session``, kept for one version."""

from connectors.spark.common.session import *  # noqa: F403  # whatever it has
