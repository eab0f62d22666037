"""Patterns of texts, each with the words that tell a user what it asks for.

The API server can only show the pattern itself; `sglpool plan` says the words. Not here: bounds of length, which
stand at the fields.
"""

OBJECT_NAME = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"
ABSOLUTE_PATH = r"^/.*$"
RELATIVE_PATH = r"^[^/]"
SECRET_KEY = r"^[-._a-zA-Z0-9]+$"
GPU_TYPE = r"^[A-Z][A-Z0-9]+$"
HTTP_URL = r"^https?://"
VALKEY_URL = r"^(redis|rediss|valkey|valkeys)://"
REPOSITORY = r"^[\w.-]+/[\w.-]+$"
MODEL_NAME = r"^[A-Za-z0-9][A-Za-z0-9._/:-]*$"
VARIABLE = r"^[A-Za-z_][A-Za-z0-9_]*$"
CAPABILITY = r"^[A-Z_]+$"
LABEL_VALUE = r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$"
LABEL_KEY = r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$"
POOL_NAME = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"
AMOUNT = r"^[0-9]{1,18}(\.[0-9]{1,3})?(m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?$"

WORDS: dict[str, str] = {
    OBJECT_NAME: "hold only a-z, 0-9, '-' and '.', with a letter or digit first and last",
    ABSOLUTE_PATH: "be an absolute path, with '/' first",
    RELATIVE_PATH: "be a relative path, without '/' first",
    SECRET_KEY: "hold only letters, digits, '-', '_' and '.'",
    GPU_TYPE: "be spelled as in the catalogue: capital letters and digits, for example B200",
    HTTP_URL: "start with http:// or https://",
    VALKEY_URL: "start with valkey:// or redis://, with TLS valkeys:// or rediss://",
    REPOSITORY: "be owner/name, for example nvidia/Kimi-K2.6-NVFP4",
    MODEL_NAME: "hold only letters, digits, '.', '_', '/', ':' and '-', with a letter or digit first",
    VARIABLE: "hold only letters, digits and '_', with no digit first",
    CAPABILITY: "be spelled in capitals without CAP_, for example SYS_NICE",
    LABEL_VALUE: "hold only letters, digits, '-', '_' and '.', with a letter or digit first and last",
}
"""What must hold, to follow the word "must"."""
