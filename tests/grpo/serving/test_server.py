from __future__ import annotations

import datetime as dt
import ipaddress
import os
import shutil
import ssl
import subprocess
import sys
from pathlib import Path

import httpx
import openai
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from websockets.sync.client import connect

from grpo.config.serving import ServerSettings
from grpo.errors import AddressError, GRPOError, StorageError
from grpo.serving.access.guard import Authenticator
from grpo.serving.access.keys import KeyStore
from grpo.serving.engine.served_model import ServedModel
from grpo.serving.server import ServerPlaces, make_connections, run_server, uvicorn_config
from tests.grpo.log.fixtures import turn
from tests.grpo.log.test_compaction import write
from tests.grpo.serving.chat_servers import CLERK, chat_server
from tests.places import ROOT
from tests.ports import own_port


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
            assert "connected" in socket.recv(timeout=240)
        with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
            httpx.get(f"https://{address}/live")
        with pytest.raises(httpx.TransportError):
            httpx.get(f"http://{address}/live")


def test_idle_connections_outlive_those_of_proxies(tmp_path: Path):
    """Haproxy and nginx drop theirs after 60 s: a request that they send while the server closes would be lost."""
    settings = ServerSettings()
    assert uvicorn_config(None, settings, make_connections(settings)).timeout_keep_alive > 60


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (AddressError("no model desk is registered"), "no model desk is registered"),
        (ImportError("No module named 'shop'"), r"no version can be served: ImportError: No module named 'shop' \("),
        (SystemExit(0), r"the version's code raised SystemExit: 0 \("),
        (KeyboardInterrupt(), r"the version's code raised KeyboardInterrupt \("),
        (ConnectionError("MLflow is away"), "no version can be served: ConnectionError: MLflow is away"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_first_version_that_cannot_be_loaded_ends_the_server_with_its_error(
    tmp_path: Path, error: BaseException, message: str
):
    """Whatever its exception is: the command makes one line of it, and exit code 1."""

    def load(current: str) -> ServedModel | None:
        raise error

    places = ServerPlaces(log=tmp_path / "log", budgets=tmp_path / "budgets.db", reports=tmp_path)
    with pytest.raises(GRPOError, match=message):
        run_server(ServerSettings(port=own_port()), places, load, Authenticator(KeyStore(tmp_path / "keys.json")))


def test_a_log_that_cannot_be_opened_ends_the_server_with_its_error(tmp_path: Path):
    """A log without its salt: uvicorn alone would end as if all were well."""
    write(tmp_path / "log", turn("a"))
    (tmp_path / "log" / "salt").unlink()
    places = ServerPlaces(log=tmp_path / "log", budgets=tmp_path / "budgets.db", reports=tmp_path)
    with pytest.raises(StorageError, match="salt is missing"):
        run_server(
            ServerSettings(port=own_port()),
            places,
            lambda current: None,
            Authenticator(KeyStore(tmp_path / "keys.json")),
        )


def test_the_command_ends_with_one_line_and_exit_code_1(tmp_path: Path):
    """A model folder whose weights are damaged; a supervisor such as systemd sees a failure, not a clean end."""
    model, home = tmp_path / "model", tmp_path / "home"
    shutil.copytree(CLERK, model)
    (weights,) = model.glob("*.safetensors")
    weights.write_bytes(weights.read_bytes()[:1000])
    home.mkdir()
    KeyStore(home / "keys.json").create("shop", ["chat"])
    path = os.pathsep.join(map(str, (ROOT, ROOT / "flows", ROOT / "tasks")))
    command = [sys.executable, "-m", "grpo_cli", "serve", str(model), "--port", str(own_port())]
    environment = {**os.environ, "GRPO_HOME": str(home), "PYTHONPATH": path, "GRPO_MLFLOW_PORT": str(own_port())}
    environment.pop("MLFLOW_TRACKING_URI", None)
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert ended.returncode == 1, ended.stderr
    assert "Traceback" not in ended.stderr
    assert len([line for line in ended.stderr.splitlines() if "Error: " in line]) == 1
