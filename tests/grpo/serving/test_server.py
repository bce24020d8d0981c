from __future__ import annotations

import datetime as dt
import ipaddress
import ssl
from pathlib import Path

import httpx
import openai
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from websockets.sync.client import connect

from grpo.serving.server import ServerSettings, uvicorn_config
from tests.grpo.serving.chat_servers import chat_server


def self_signed(folder: Path) -> tuple[Path, Path]:
    """Certificate of 127.0.0.1 and its key, as PEM files."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "grpo test")])
    now = dt.datetime.now(dt.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + dt.timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    files = folder / "certificate.pem", folder / "key.pem"
    files[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    files[1].write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return files


def test_a_server_with_a_certificate_answers_over_tls_alone(tmp_path: Path):
    """HTTP and WebSockets, to a client that trusts the certificate; bodies are bounded as configured."""
    certificate, key = self_signed(tmp_path)
    trusting = ssl.create_default_context(cafile=str(certificate))
    with chat_server(tmp_path, tls=(certificate, key), body_bytes=2000) as server:
        headers, address = server.headers(), f"127.0.0.1:{server.port}"
        with httpx.Client(verify=trusting, headers=headers, base_url=f"https://{address}") as web:
            client = openai.OpenAI(
                base_url=f"https://{address}/v1", api_key=server.client().api_key, http_client=web, max_retries=0
            )
            question = {"role": "user", "content": "Hello"}
            reply = client.chat.completions.create(model="clerk", messages=[question], max_tokens=2)  # type: ignore[list-item]
            assert reply.choices[0].finish_reason == "length"
            assert web.post("/v1/feedback", content=b" " * 2001).status_code == 413
        with connect(f"wss://{address}/v1/events", additional_headers=headers, ssl=trusting) as socket:
            assert "connected" in socket.recv(timeout=30)
        with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
            httpx.get(f"https://{address}/live")
        with pytest.raises(httpx.TransportError):
            httpx.get(f"http://{address}/live")


def test_idle_connections_outlive_those_of_proxies(tmp_path: Path):
    """Haproxy and nginx drop theirs after 60 s: a request that they send while the server closes would be lost."""
    settings = ServerSettings(log=tmp_path, budgets=tmp_path / "budgets.db")
    assert uvicorn_config(None, settings).timeout_keep_alive > 60
