"""A loop of coroutines keeps each result."""
import asyncio

results = {}


async def fetch(i):
    await asyncio.sleep(0.002)
    return {"id": i, "body": "y" * 20_000}


async def main():
    for i in range(5000):
        results[i] = await fetch(i)


asyncio.run(main())
