"""Old name of ``reconcile.store_source``, kept for one version."""

from connectors.spark.reconcile.store_source import StoreSource


class WheelSource(StoreSource):
    """Registers the format under its old name."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "delayservice-wheel"
