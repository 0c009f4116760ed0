"""Certificates for servers on this machine, created on demand and valid for an hour."""

from __future__ import annotations

import ipaddress
import ssl
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

if TYPE_CHECKING:
    from pathlib import Path

HOUR = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Certificate:
    """Files of a server's certificate and private key."""

    file: Path
    key: Path

    def context(self) -> ssl.SSLContext:
        """Return the TLS context of a server with this certificate."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(self.file, self.key)
        return context


class Authority:
    """Certificate authority; a client that is given `file` trusts its certificates."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"Grantwire test {name}")])
        builder = _set_validity(_start_builder(self._name, self._name, self._key), datetime.now(UTC) + HOUR)
        signs_certificates = x509.KeyUsage(
            digital_signature=False,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            key_cert_sign=True,
            crl_sign=False,
            encipher_only=False,
            decipher_only=False,
        )
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        certificate = builder.add_extension(signs_certificates, critical=True).sign(self._key, hashes.SHA256())
        self.file = folder / f"{name}.pem"
        self.file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def issue(self, *hosts: str, expires: datetime | None = None) -> Certificate:
        """Issue a certificate for these host names and addresses."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, hosts[0])])
        builder = _set_validity(_start_builder(subject, self._name, key), expires or datetime.now(UTC) + HOUR)
        names = x509.SubjectAlternativeName([_general_name(host) for host in hosts])
        # Python 3.13 and later refuse a certificate without the identifier of its authority.
        authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        builder = builder.add_extension(names, critical=False).add_extension(authority, critical=False)
        certificate = builder.sign(self._key, hashes.SHA256())
        issued = Certificate(self._folder / f"{hosts[0]}.pem", self._folder / f"{hosts[0]}.key")
        issued.file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        issued.key.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return issued


def _start_builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _set_validity(builder: x509.CertificateBuilder, until: datetime) -> x509.CertificateBuilder:
    return builder.not_valid_before(until - 24 * HOUR).not_valid_after(until)


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
