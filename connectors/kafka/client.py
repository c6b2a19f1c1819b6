"""Former name of the client library, which is the package ``kafka_delay_client``."""

try:
    import kafka_delay_client
    from kafka_delay_client import *  # noqa: F403  # all of its public names
except ModuleNotFoundError as exc:
    raise ModuleNotFoundError(
        "connectors.kafka.client is the package kafka_delay_client, which the service does not "
        "bring along: install the wheel kafka_delay_client beside the service's",
        name=exc.name,
    ) from exc

__all__ = kafka_delay_client.__all__
