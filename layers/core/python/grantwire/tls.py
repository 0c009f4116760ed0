"""Trusted certificate authorities, and the TLS contexts that verify servers with them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ssl import SSLContext

_PEM_HEADER = "-----BEGIN CERTIFICATE-----"

# The trusted certificates of Amazon Linux, Debian, Alpine and macOS. libpq's own default cannot be used: the libpq in
# psycopg's wheels was built with a path that exists on none of them.
_SYSTEM_CERTIFICATE_FILES = (
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/ssl/cert.pem",
)


@dataclass(frozen=True, slots=True)
class Certificates:
    """The trusted certificate authorities: a PEM file or PEM text; empty if the system has no such file."""

    file: str | None = None
    text: str | None = field(default=None, repr=False)

    @property
    def is_empty(self) -> bool:
        """Whether there is neither a file nor text."""
        return self.file is None and self.text is None

    def ssl_context(self) -> SSLContext:
        """Return a TLS context that verifies servers with these authorities, with TLS 1.2 or later."""
        import ssl  # noqa: PLC0415 - most functions do not need it

        context = ssl.create_default_context(cafile=self.file, cadata=self.text)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        return context


def certificates(value: str) -> Certificates:
    r"""Parse `system`, the path of a PEM file, or PEM text, which may have the two characters `\n` as line break."""
    if value == "system":
        return Certificates(file=next((path for path in _SYSTEM_CERTIFICATE_FILES if Path(path).is_file()), None))
    if value.startswith(_PEM_HEADER):
        return Certificates(text=value.replace("\\n", "\n"))
    try:
        readable = _PEM_HEADER in Path(value).read_text(encoding="latin-1")
    except (OSError, ValueError):
        readable = False
    if not readable:
        raise ValueError("must be system, the path of a readable file with PEM certificates, or PEM text")
    return Certificates(file=value)
