"""Certificates to test TLS with."""

import ipaddress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


@dataclass(frozen=True, kw_only=True)
class Authority:
    """Who signs certificates; `certificate` is a path."""

    certificate: str
    name: x509.Name
    key: ec.EllipticCurvePrivateKey


def make_authority(folder: Path, /, *, name: str) -> Authority:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    path = folder / f"{name}.crt"
    builder = _builder(subject, key=key, issuer=subject).add_extension(
        x509.BasicConstraints(ca=True, path_length=0), critical=True
    )
    usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
    builder = builder.add_extension(usage, critical=True)
    path.write_bytes(builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
    return Authority(certificate=str(path), name=subject, key=key)


def make_certificate(folder: Path, /, *, authority: Authority, address: str) -> tuple[str, str]:
    """The paths of a certificate for an address, and of its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "redis")])
    alternative = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(address))])
    builder = _builder(subject, key=key, issuer=authority.name).add_extension(alternative, critical=False)
    builder = builder.add_extension(
        x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key()), critical=False
    )
    certificate, private = folder / "redis.crt", folder / "redis.key"
    certificate.write_bytes(builder.sign(authority.key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
    private.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return str(certificate), str(private)


def _builder(subject: x509.Name, *, key: ec.EllipticCurvePrivateKey, issuer: x509.Name) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
