import asyncio, os, urllib.parse, uuid
import asyncpg, psycopg, psycopg2, psycopg2.extras

url = os.environ["DATABASE_URL"]
seven, id = 7, uuid.UUID(int=7)
psycopg2.extras.register_uuid()


def fails(error, code, call):
    try:
        call()
    except error as raised:
        assert getattr(raised, "sqlstate", getattr(raised, "pgcode", None)) == code, raised
    else:
        raise AssertionError("it did not fail")


def ask(connection, key, cost, values):
    cursor = connection.cursor()
    cursor.execute(f"select granted, retry_after_seconds from tollgate.consume('ten', {key}, {cost})", values)
    return cursor.fetchone()


for connection in [psycopg.connect(url, autocommit=True), psycopg2.connect(url)]:
    connection.autocommit = True
    for key in [seven, id]:
        fails(Exception, "42883", lambda: ask(connection, "%s", "1", [key]))
        assert ask(connection, "%s::text", "%s::float8::numeric", [key, 1.0])[0]
    sum = f"sum of {type(connection).__module__}"
    assert ask(connection, "%s", "%s::float8::numeric", [sum, 0.1 + 0.2])[0]
    granted, seconds = ask(connection, "%s", "10", [sum])
    assert not granted and 0 < seconds < 10_000_000 and isinstance(seconds, float)
    connection.close()
fails(Exception, "42883", lambda: ask(psycopg.connect(url), "'k'", "%s", [1.5]))


async def main():
    # It passes over the directory of a socket where the URL names a host besides.
    parts = urllib.parse.urlsplit(url)
    socket = urllib.parse.parse_qs(parts.query).get("host", [None])[0]
    connection = await asyncpg.connect(url, host=socket, port=parts.port)
    for cast, key in [("int8", seven), ("uuid", id)]:
        try:
            await connection.fetchval("select granted from tollgate.consume('ten', $1)", key)
            raise AssertionError("it did not fail")
        except asyncpg.DataError:
            pass
        ask = f"select granted from tollgate.consume('ten', $1::{cast}::text, $2::float8::numeric)"
        assert await connection.fetchval(ask, key, 1.0)
    assert await connection.fetchval("select granted from tollgate.consume('ten', 'sum', $1::float8::numeric)", 0.1 + 0.2)
    row = await connection.fetchrow("select * from tollgate.consume('ten', 'sum', 10)")
    assert row["retry_after"].total_seconds() == row["retry_after_seconds"]
    await connection.close()


asyncio.run(main())
