"""The StatefulSets of deploy/kubernetes as what ``podman kube play`` knows: a Pod for each ordinal.

Podman 4.3 has no StatefulSet, so each Pod gets its name, the label of its index, and the claims of
the templates. It expands no ``$(POD_NAME)``, ends at a secret without ``optional``, and loses named
ports and headers of probes: probes are left out here and asked by the caller.
"""

from __future__ import annotations

import base64
import copy
import os
from pathlib import Path
from typing import Any

import yaml

_SECRETS = ("cluster_secret", "zookeeper_password", "admin_token")


class _Dumper(yaml.SafeDumper):
    """Writes every anchor out: podman reads no aliases."""

    def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002
        return True


def write(manifest: Path, out: Path, variables: dict[str, str], without: str = "") -> list[str]:
    """Write ``secret.yaml`` and a file for each Pod; return the names of the Pods.

    Args:
        manifest: the StatefulSets, with the ConfigMap that they mount.
        out: folder to be made.
        variables: values of environment variables in place of the manifest's.
        without: name of a container that is left out.
    """
    documents = list(yaml.safe_load_all(manifest.read_text("utf-8")))
    config = next(one for one in documents if one["kind"] == "ConfigMap")
    out.mkdir(parents=True)
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "delayservice"},
        "type": "Opaque",
        "data": {name: _random() for name in _SECRETS},
    }
    _dump(out / "secret.yaml", secret)
    names = []
    for stateful in (one for one in documents if one["kind"] == "StatefulSet"):
        for index in range(stateful["spec"]["replicas"]):
            name = f"{stateful['metadata']['name']}-{index}"
            pod, claims = _pod(stateful["spec"], name, index, variables)
            containers = pod["spec"]["containers"]
            pod["spec"]["containers"] = [one for one in containers if one["name"] != without]
            _dump(out / f"{name}.yaml", config, *claims, pod)
            names.append(name)
    return names


def _pod(
    spec: dict[str, Any], name: str, index: int, variables: dict[str, str]
) -> tuple[dict[str, Any], list[Any]]:
    pod: dict[str, Any] = {"apiVersion": "v1", "kind": "Pod", **copy.deepcopy(spec["template"])}
    pod["metadata"]["name"] = name
    # Podman takes values of at most 63 characters; a checksum has one more.
    pod["metadata"].pop("annotations", None)
    pod["metadata"]["labels"]["apps.kubernetes.io/pod-index"] = str(index)
    for volume in pod["spec"].setdefault("volumes", []):
        if "secret" in volume:
            volume["secret"]["optional"] = False
    for container in pod["spec"]["containers"]:
        for variable in container.get("env", []):
            if "value" in variable:
                value = variables.get(variable["name"], variable["value"])
                variable["value"] = value.replace("$(POD_NAME)", name)
        for part in ("startupProbe", "livenessProbe", "readinessProbe", "ports"):
            container.pop(part, None)
    claims = []
    for template in spec["volumeClaimTemplates"]:
        claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", **copy.deepcopy(template)}
        volume = template["metadata"]["name"]
        claim["metadata"]["name"] = f"{volume}-{name}"
        claims.append(claim)
        reference = {"claimName": claim["metadata"]["name"]}
        pod["spec"]["volumes"].append({"name": volume, "persistentVolumeClaim": reference})
    return pod, claims


def _random() -> str:
    return base64.b64encode(base64.b64encode(os.urandom(32))).decode()


def _dump(path: Path, *documents: object) -> None:
    path.write_text(yaml.dump_all(documents, sort_keys=False, Dumper=_Dumper))
