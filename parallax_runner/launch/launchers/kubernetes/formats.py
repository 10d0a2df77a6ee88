"""The formats of names and quantities that an API server accepts, and of this package's short forms."""

import re
from dataclasses import dataclass

# A Service and a job with a Service need a label of RFC 1035. Names of pods append a role, two numbers and a random
# suffix to the name of the job, and must have at most 63 characters.
MOST_OF_JOB_NAME = 40
JOB_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
IMAGE = re.compile(r"[a-z0-9]+([._:/-]+[a-z0-9]+)*(:\w[\w.-]{0,127})?(@sha256:[0-9a-f]{64})?")
LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-\w.]*[A-Za-z0-9])?)?", re.ASCII)
KEY_OF_SECRET = re.compile(r"[-\w.]+", re.ASCII)
QUANTITY = re.compile(r"(\d+(?:\.\d+)?)(m|k|Ki|M|Mi|G|Gi|T|Ti|P|Pi)?")
EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")


@dataclass(frozen=True)
class Volume:
    """A claim and the folder at which all containers see it."""

    claim: str
    path: str
    is_read_only: bool

    def contains(self, folder: str) -> bool:
        """Returns whether a folder is in this volume."""
        return f"{folder}/".startswith(f"{self.path}/")


@dataclass(frozen=True)
class Toleration:
    """A taint that the pods tolerate. `value` and `effect` are None for any value and any effect."""

    key: str
    value: str | None
    effect: str | None


@dataclass(frozen=True)
class SecretKey:
    """A key of a Secret."""

    secret: str
    key: str


def is_object_name(name: str) -> bool:
    """Returns whether an object such as a claim or a Secret can have this name: labels, separated by dots."""
    return len(name) <= 253 and all(len(part) <= 63 and LABEL.fullmatch(part) for part in name.split("."))


def is_label(name: str) -> bool:
    """Returns whether a namespace can have this name."""
    return len(name) <= 63 and LABEL.fullmatch(name) is not None


def is_job_name(name: str) -> bool:
    """Returns whether a job can have this name, with the names of its pods and of its Service."""
    return len(name) <= MOST_OF_JOB_NAME and JOB_NAME.fullmatch(name) is not None


def is_label_key(key: str) -> bool:
    """Returns whether a label, a taint or a resource can have this name, such as `example.com/gpu`."""
    prefix, slash, name = key.rpartition("/")
    has_prefix = is_object_name(prefix) if slash else True
    return has_prefix and name != "" and is_label_value(name)


def is_label_value(value: str) -> bool:
    """Returns whether a label can have this value."""
    return len(value) <= 63 and LABEL_VALUE.fullmatch(value) is not None


def is_quantity(text: str) -> bool:
    """Returns whether this is an amount greater than 0, such as `500m`, `2` or `1.5Gi`."""
    found = QUANTITY.fullmatch(text)
    return found is not None and float(found[1]) > 0


def volume_of(text: str) -> Volume | None:
    """Reads `CLAIM:/PATH` or `CLAIM:/PATH:ro`. Returns None if the text has another format."""
    claim, _, rest = text.partition(":")
    path, colon, option = rest.partition(":")
    is_folder = path.startswith("/") and path.strip("/") != "" and ".." not in path.split("/")
    if not is_object_name(claim) or not is_folder or option != ("ro" if colon else ""):
        return None
    return Volume(claim, path.rstrip("/"), is_read_only=option == "ro")


def toleration_of(text: str) -> Toleration | None:
    """Reads `KEY`, `KEY=VALUE`, `KEY:EFFECT` or `KEY=VALUE:EFFECT`. Returns None if the text has another format."""
    taint, colon, effect = text.partition(":")
    key, equal, value = taint.partition("=")
    if not is_label_key(key) or not is_label_value(value):
        return None
    if colon and effect not in EFFECTS:
        return None
    return Toleration(key, value if equal else None, effect if colon else None)


def secret_key_of(text: str) -> SecretKey | None:
    """Reads `SECRET/KEY`. Returns None if the text has another format."""
    secret, _, key = text.partition("/")
    if not is_object_name(secret) or KEY_OF_SECRET.fullmatch(key) is None:
        return None
    return SecretKey(secret, key)
