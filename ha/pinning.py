"""Pinning of ownership by an operator, for example during an upgrade."""

from __future__ import annotations

from contextlib import suppress

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException, NoAuthError, NoNodeError

from delayservice.base.errors import DelayServiceError
from delayservice.config.cluster import ZooKeeper
from ha.kazoo_client import connected
from ha.notes import PinNote, encode


def set_pin(options: ZooKeeper, note: PinNote | None) -> bool:
    """Pin ownership, or end the pin. May be repeated.

    Args:
        options: address of ZooKeeper and login.
        note: reason and operator; None: end the pin.

    Returns:
        Whether owners were pinned before.

    Raises:
        DelayServiceError: the ensemble is not reached, or refuses this user.
    """
    path = f"{options.root}/pinned"
    try:
        with connected(options) as client:
            was_pinned = client.exists(path) is not None
            if note is None:
                _delete(client, path)
            elif was_pinned:
                client.set(path, encode(note))
            else:
                client.create(path, encode(note), makepath=True)
    except NoAuthError as exc:
        raise DelayServiceError(
            f"ZooKeeper does not let {options.username or 'everybody'} write {path}: log in as the "
            "nodes do"
        ) from exc
    except KazooException as exc:
        raise DelayServiceError(f"ZooKeeper failed at {path}, repeat it: {exc!r}") from exc
    return was_pinned


def _delete(client: KazooClient, path: str) -> None:
    with suppress(NoNodeError):
        client.delete(path)
