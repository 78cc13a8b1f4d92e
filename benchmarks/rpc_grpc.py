"""One end of the RPC benchmark over grpc.aio, with the words of `rpc_hyperscale`.

MODE is `tls`, or `plain` to see what TLS has to do with it. Bodies are passed as they are,
without protobuf: only the transport is compared. Runs in the environment of the peers, so it
imports nothing of ours.
"""

import asyncio
import json
import sys
import time
from pathlib import Path

import grpc

IN_FLIGHT = 64
BODY = bytes(range(256))


async def tell(request: bytes, _context: object) -> bytes:
    return request


async def serve(mode: str, folder: Path) -> None:
    server = grpc.aio.server()
    methods = {"Tell": grpc.unary_unary_rpc_method_handler(tell)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bench.Bench", methods),))
    if mode == "tls":
        pair = (folder / "server-key.pem").read_bytes(), (folder / "server.pem").read_bytes()
        port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([pair]))
    else:
        port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    began_s = time.process_time()
    print(json.dumps({"port": port}), flush=True)
    await asyncio.to_thread(sys.stdin.read)
    print(json.dumps({"cpu_s": time.process_time() - began_s}), flush=True)
    await server.stop(1)


def open_channel(mode: str, folder: Path, port: int) -> grpc.aio.Channel:
    if mode != "tls":
        return grpc.aio.insecure_channel(f"127.0.0.1:{port}")
    credentials = grpc.ssl_channel_credentials((folder / "ca.pem").read_bytes())
    return grpc.aio.secure_channel(f"127.0.0.1:{port}", credentials)


async def ask(mode: str, folder: Path, port: int, seconds: float) -> None:
    loop = asyncio.get_running_loop()
    count = 0
    async with open_channel(mode, folder, port) as channel:
        call = channel.unary_unary("/bench.Bench/Tell")
        began_s, until_s = time.process_time(), loop.time() + seconds

        async def caller() -> None:
            nonlocal count
            while loop.time() < until_s:
                told = await call(BODY, timeout=10)
                assert told == BODY
                count += 1

        async with asyncio.TaskGroup() as group:
            for _ in range(IN_FLIGHT):
                group.create_task(caller())
        used_s = time.process_time() - began_s
    print(json.dumps({"count": count, "cpu_s": used_s}), flush=True)


def main() -> None:
    mode, folder = sys.argv[2], Path(sys.argv[3])
    if sys.argv[1] == "server":
        asyncio.run(serve(mode, folder))
    else:
        asyncio.run(ask(mode, folder, int(sys.argv[4]), float(sys.argv[5])))


main()
