"""Certificates of a private CA, made with openssl."""

import subprocess
from pathlib import Path


def make_certificates(folder: Path) -> Path:
    """Fill a folder with a private CA (ca.crt), a server's pair for 127.0.0.1 and a client's pair; return it."""

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    openssl("req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.crt", "-subj", "/CN=private CA")
    for name in ("server", "client"):
        openssl(
            "req", "-x509", *key, "-keyout", f"{name}.key", "-out", f"{name}.crt", "-subj", f"/CN={name}",
            "-CA", "ca.crt", "-CAkey", "ca.key", "-addext", "subjectAltName=IP:127.0.0.1",
            "-addext", "basicConstraints=critical,CA:FALSE",
        )  # fmt: skip
    return folder
