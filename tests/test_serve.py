"""`shardq serve` as a process: what arrives, what leaves, and how it ends."""

from __future__ import annotations

import os
import re
import signal
import socket
import ssl
import struct
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import trustme
from served import Client, Server, head, serving
from shell import shell

if TYPE_CHECKING:
    from shell import Shell

ENDPOINT = {"content-type": "application/x-amz-json-1.0"}


def test_a_server_tells_where_it_is_that_it_is_open_and_ends_by_sigterm(shell: Shell) -> None:
    with serving(shell, "--dev") as server:
        assert "there is no account: every program of this machine may" in server.lines[0]
        assert server.ask("GET", "/livez").body == b"ok\n"
        assert server.ask("GET", "/readyz").status == 200
        assert server.ask("GET", "/_localstack/health").json["services"] == {"sqs": "running"}
        got = server.ask("POST", "/", b"{}", **ENDPOINT)
        assert got.headers["x-amzn-requestid"] == got.headers["x-request-id"]
        stdout = server.process.stdout
        assert stdout is not None
        told = b"".join(stdout.readline() for _ in range(4)).decode()
        # Both versions of AWS CLI take the option; only version 2 reads the variable.
        script = told + "aws() { echo $*; }; sqs list-queues --max-items 1"
        made = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
        url = f"http://127.0.0.1:{server.port}"
        assert made.stdout == f"--endpoint-url {url} sqs list-queues --max-items 1\n"
        assert server.stop() == 0
        assert server.lines[1].startswith("shardq: serves sqlite:///")


def test_localstack_s_path_is_answered_in_development_alone(shell: Shell) -> None:
    with serving(shell) as server:
        assert server.ask("GET", "/_localstack/health").status == 404


def test_a_body_of_more_than_8_mib_is_refused_whether_its_length_is_told_or_not(
    shell: Shell,
) -> None:
    with serving(shell) as server:
        most = bytes(8 << 20)
        assert server.ask("POST", "/v1/nowhere", most).status == 404
        assert server.ask("POST", "/v1/nowhere", most + b"1").status == 413
        with server.connected() as client:
            client.send(head("POST", "/", {"transfer-encoding": "chunked"}))
            part = b"100000\r\n" + bytes(1 << 20) + b"\r\n"
            for _ in range(9):
                client.send(part)
            client.send(b"0\r\n\r\n")
            assert client.answer().status == 413
            assert client.is_closed()
        with server.connected() as client:
            client.send(head("POST", "/", {"content-length": "9" * 30}))
            assert client.answer().status in {400, 413}
        assert server.ask("GET", "/livez").status == 200


def test_an_endless_body_is_ended(shell: Shell) -> None:
    with serving(shell) as server, server.connected() as client:
        client.send(head("POST", "/", {"transfer-encoding": "chunked"}))
        part = b"100000\r\n" + bytes(1 << 20) + b"\r\n"
        with pytest.raises(ConnectionError):
            client.send(part * 100)
        assert server.ask("GET", "/livez").status == 200


def test_a_head_of_more_than_64_kib_is_refused(shell: Shell) -> None:
    with serving(shell) as server:
        with server.connected() as client:
            # In parts, of which none has a whole head.
            client.send(b"GET /livez HTTP/1.1\r\nhost: test\r\n")
            fields = b"".join(b"x-%d: %s\r\n" % (number, b"y" * 1_000) for number in range(9_999))
            with pytest.raises(ConnectionError):
                client.send(fields)
        whole = head("GET", "/v1/nowhere", {f"x-{number}": "y" * 1_000 for number in range(80)})
        with server.connected() as client:
            client.send(whole)
            assert client.answer().status == 431
        trailers = b"".join(b"t-%d: %s\r\n" % (number, b"y" * 1_000) for number in range(1_000))
        with server.connected() as client:
            client.send(head("POST", "/v1/nowhere", {"transfer-encoding": "chunked"}))
            client.send(b"1\r\nx\r\n0\r\n" + trailers + b"\r\n")
            assert client.answer().status == 404
        assert server.ask("GET", "/livez").status == 200


def test_a_slow_head_and_a_slow_body_are_ended(shell: Shell) -> None:
    before = (
        "from shardq.server import client, wire; client.BODY_S_MAX = 0.2; wire.HEAD_S_MAX = 0.2"
    )
    with serving(shell, before=before) as server:
        with server.connected() as silent, server.connected() as slow, server.connected() as kept:
            slow.send(b"GET /livez HTTP/1.1\r\nhost:")
            assert silent.is_closed()
            assert slow.is_closed()
            assert kept.is_closed()
        with server.connected() as client:
            assert client.ask("GET", "/livez").status == 200
            client.send(b"GET /livez")
            assert client.is_closed()
        # A line end after a body, as some send it, ends no poll.
        body = b'{"wait": "1s"}'
        sent = {"content-length": str(len(body)), "content-type": "application/json"}
        assert server.ask("PUT", "/v1/queues/mail").status == 201
        with server.connected() as client:
            client.send(head("POST", "/v1/queues/mail/receive", sent) + body)
            assert server.ask("GET", "/livez").status == 200
            client.send(b"\r\n")
            assert client.answer().json == {"messages": []}
            client.send(b"GET /livez")
            assert client.is_closed()
        with server.connected() as client:
            client.send(head("POST", "/v1/nowhere", {"content-length": "10"}) + b"12345")
            got = client.answer()
            assert got.status == 408
            assert client.is_closed()


def test_what_is_no_http_is_refused(shell: Shell) -> None:
    with serving(shell) as server, server.connected() as client:
        client.send(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 20)
        assert client.answer().status == 400


def test_a_server_refuses_other_machines_without_an_account(shell: Shell) -> None:
    assert "--insecure" in shell.fails(2, "serve", "--host", "0.0.0.0", "--port", "0")


def test_a_port_that_is_taken_is_refused_unless_it_is_taken_over(shell: Shell) -> None:
    with serving(shell) as first:
        port = first.port
        assert "--take-over" in shell.fails(2, "serve", "--port", str(port))
        with serving(shell, "--take-over", port=port) as second:
            answered = 0
            first.signal(signal.SIGTERM)
            while first.process.poll() is None or answered < 100:
                assert second.ask("GET", "/livez").status == 200
                answered += 1
            assert first.end() == 0
            assert second.ask("GET", "/livez").status == 200
            assert second.stop() == 0


def test_processes_share_a_port_and_are_replaced_without_a_refused_connection(
    shell: Shell,
) -> None:
    shell.ok("init")
    with serving(shell, "--processes", "2", count=2) as server:
        first = set(server.pids)
        assert len(first) == 2
        server.signal(signal.SIGHUP)
        begun: set[str] = set()
        while len(begun) < 2:
            assert server.ask("GET", "/livez").status == 200
            begun = {
                found[1]
                for line in list(server.lines)
                if (found := re.search(r"process (\d+) serves", line))
                and int(found[1]) not in first
            }
        assert server.ask("GET", "/livez").status == 200
        assert server.stop() == 0
    assert not [line for line in server.lines if "killed" in line]


def test_a_process_that_died_is_replaced_and_its_connections_wait(shell: Shell) -> None:
    shell.ok("init")
    with serving(shell, "--processes", "1") as server:
        [number] = server.pids
        os.kill(number, signal.SIGKILL)
        # Nobody takes connections until another process does, and none is refused.
        assert server.ask("GET", "/livez").status == 200
        assert server.stop() == 0


def test_a_server_by_tls(shell: Shell, tmp_path: Path) -> None:
    authority = trustme.CA()
    made = authority.issue_cert("127.0.0.1")
    certificate, key = tmp_path / "tls.crt", tmp_path / "tls.key"
    made.private_key_pem.write_to_path(key)
    for part in made.cert_chain_pems:
        part.write_to_path(certificate, append=True)
    assert "go together" in shell.fails(2, "serve", "--certificate", str(certificate))
    assert "cannot be read" in shell.fails(2, "serve", "--certificate", "none", "--key", str(key))
    assert "cannot be used" in shell.fails(2, "serve", "--certificate", str(key), "--key", str(key))
    with serving(shell, "--certificate", str(certificate), "--key", str(key)) as server:
        assert "at https://127.0.0.1:" in server.lines[1]
        context = ssl.create_default_context()
        authority.configure_trust(context)
        with (
            server.connected() as plain,
            context.wrap_socket(plain.connection, server_hostname="127.0.0.1") as wrapped,
        ):
            assert Client(wrapped).ask("GET", "/livez").status == 200
        assert server.stop() == 0


def test_connections_that_are_opened_and_dropped_leave_nothing(shell: Shell) -> None:
    with serving(shell) as server:
        assert server.ask("GET", "/livez").status == 200
        files = Path(f"/proc/{server.process.pid}/fd")
        before = len(list(files.iterdir()))
        ways = [
            b"",
            b"GET /livez HTTP/1.1\r\nhos",
            head("POST", "/", {"content-length": "100"}) + b"1",
            head("POST", "/", {"transfer-encoding": "chunked"}) + b"5\r\n123",
            head("GET", "/livez", {}),
            head("GET", "/livez", {}) * 50,
        ]
        held = []
        for number in range(600):
            one = socket.create_connection(("127.0.0.1", server.port), 60)
            one.sendall(ways[number % len(ways)])
            if number % 2:
                # This socket's close sends a reset.
                one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            held.append(one)
        for one in held:
            one.close()
        asked = 0
        while len(list(files.iterdir())) > before:
            assert server.ask("GET", "/livez").status == 200
            asked += 1
            assert asked < 10_000, "connections are left"
        assert server.stop() == 0
    assert not [line for line in server.lines if "Traceback" in line or "rror" in line]


def test_a_socket_of_systemd_is_taken_and_connections_wait_for_the_next_server(
    shell: Shell,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as kept:
        # Start the server as systemd does: the socket is descriptor 3, LISTEN_PID is the server's.
        code = (
            "import os, sys; os.dup2(int(sys.argv[1]), 3); "
            "os.environ |= {'LISTEN_PID': str(os.getpid()), 'LISTEN_FDS': '1'}; "
            "os.execv(sys.executable, [sys.executable, '-m', 'shardq', 'serve'])"
        )

        def start() -> Server:
            process = subprocess.Popen(
                [sys.executable, "-c", code, str(kept.fileno())],
                cwd=shell.directory,
                env=shell._environment(None),
                pass_fds=[kept.fileno()],
                stderr=subprocess.PIPE,
            )
            return Server(process)

        with start() as first:
            assert first.port == kept.getsockname()[1]
            assert first.ask("GET", "/livez").status == 200
            assert first.stop() == 0
        with socket.create_connection(("127.0.0.1", first.port), 60) as waits:
            client = Client(waits)
            client.send(head("GET", "/livez", {}))
            with start() as second:
                assert client.answer().status == 200
                assert second.stop() == 0


def test_without_the_extra_the_error_names_it(shell: Shell) -> None:
    with shell.fork("serve", before="import sys; sys.modules['uvicorn'] = None") as process:
        _, err = process.communicate()
    assert b"pip install 'shardq[server]'" in err
    assert process.returncode == 9


def test_where_httptools_and_uvloop_have_no_wheel_h11_and_asyncio_serve(shell: Shell) -> None:
    before = (
        "import sys; sys.modules['httptools'] = sys.modules['uvloop'] = None;"
        "from shardq.server import wire; wire.HEAD_S_MAX = 0.2"
    )
    with serving(shell, before=before) as server:
        with server.connected() as client:
            assert client.ask("GET", "/livez").status == 200
            assert client.ask("POST", "/v1/nowhere", b"{" * 200_000).status in {400, 404}
            client.send(b"GET /livez")
            assert client.is_closed()
        whole = head("GET", "/livez", {f"x-{number}": "y" * 1_000 for number in range(200)})
        with server.connected() as client:
            client.send(whole)
            assert client.answer().status in {0, 400, 431}
        assert server.stop() == 0


def test_an_error_of_a_process_is_that_of_the_server(shell: Shell) -> None:
    shell.ok("init")
    with shell.fork("serve", "--port", "0", "--host", "0.0.0.0", "--processes", "2") as process:
        _, err = process.communicate()
    assert b"there is no account" in err
    assert process.returncode == 2


def test_the_admin_port_is_another_port_of_the_same_server(shell: Shell) -> None:
    with socket.create_server(("127.0.0.1", 0)) as one:
        port = one.getsockname()[1]
    with serving(shell, "--admin", str(port)) as server:
        assert server.admin_port == port
        for place in (server.port, port):
            with server.connected(place) as client:
                assert client.ask("GET", "/livez").status == 200
