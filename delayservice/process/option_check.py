"""Checks the librdkafka options in the settings by making each kind of client, without brokers."""

from __future__ import annotations

from connectors.kafka.clients import admin_client, consumer_client, producer_client
from connectors.kafka.scan import consumer_config
from delayservice.base.tokens import with_tokens
from delayservice.config.settings import Settings
from delayservice.process.lanes import writer_options


def check_options(settings: Settings) -> None:
    """Raise ``SettingsError`` if no client can be made with the options; no server is asked."""
    name = "check"
    writer = writer_options(settings, name, 1)
    for make, options in (
        (admin_client, settings.kafka.client_config("admin")),
        (consumer_client, consumer_config(writer.consumer, name)),
        (producer_client, writer.transactional(name)),
    ):
        offline = {**with_tokens(options), "bootstrap.servers": ""}
        offline.pop("oauth_cb", None)  # it would ask for a token
        make(offline)
