"""Former name of the module ``reconcile.store_source``, kept for one version."""

from connectors.spark.reconcile.store_source import StoreSource


class WheelSource(StoreSource):
    """Spark data source that registers the format ``delayservice-store`` under its former name."""

    @classmethod
    def name(cls) -> str:
        """Return the former name of the format, ``delayservice-wheel``."""
        return "delayservice-wheel"
