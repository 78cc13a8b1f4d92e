"""A manager and two workers in one program: how nodes are started, watched and stopped.

python examples/embedded_nodes.py
"""

import asyncio

from hyperscale import ManagerServer, WorkerServer

ANY_PORT = {"port": 0, "http_port": 0}


async def main() -> None:
    manager = ManagerServer({"node": {"id": "manager-1"}, "listen": ANY_PORT})
    await manager.start()
    workers = [
        WorkerServer(
            {
                "node": {"id": f"worker-{number}", "cores": 1},
                "listen": ANY_PORT,
                "discovery": {"seeds": [manager.address]},
            }
        )
        for number in (1, 2)
    ]
    for worker in workers:
        await worker.start(timeout_s=30)  # ready: it knows a manager
    for member in manager.members():
        print(f"{member.node} is {member.state}")
    for worker in workers:
        await worker.graceful_shutdown()
    await manager.graceful_shutdown()


if __name__ == "__main__":
    asyncio.run(main())
